"""Numbers that the papers, their published code and their replications give, reproduced by the simulator.

Times in the tables are in units of a rank's whole share. Makespans of the V schedules are those of their published
constructions; what a heuristic makes may be better than printed, never worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import pytest

from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.costs import ScheduleCosts
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from fullbore.simulate.memory import peak_activations
from fullbore.timeline.bubble import Bubble, bubble_of

EQUAL = StageCost(20, 20, 20)
UNEQUAL = StageCost(20, 24, 16)
"""F = 1, I = 1.2, W = 0.8 of a unit of 20 ticks: T is the same, and a chunk's or a slice's part is whole."""


@dataclass(frozen=True)
class Measured:
    makespan: Fraction
    span: Fraction
    """Longest time from first start to last end of one rank."""

    peak: Fraction
    """Shares, of the fullest rank."""

    bubble: float


def measured(
    name: str,
    ranks: int,
    microbatches: int,
    *,
    share: StageCost = EQUAL,
    chunks: int | None = None,
    options: Mapping[str, int] | None = None,
) -> Measured:
    """Of the schedule that is made for these costs."""
    entry = get(name)
    sizes = entry.sizes(ranks, num_microbatches=microbatches, num_chunks=chunks, options=options)
    parts = entry.make(sizes).forwards_per_share
    cost = StageCost(share.forward // parts, share.backward_input // parts, share.backward_weight // parts)
    costs = ScheduleCosts.of(entry.place(sizes), stages=[cost] * sizes.num_stages)
    schedule = entry.make(sizes, costs)
    bubble = bubble_of(simulate(schedule, costs=costs.stages))
    unit = 20
    return Measured(
        Fraction(bubble.makespan_ns, unit),
        Fraction(max(bubble.span_ns), unit),
        Fraction(max(peak_activations(schedule)), parts),
        bubble.bubble_fraction,
    )


SIZES = ((4, 8), (4, 16), (8, 32))
GOLDEN: Mapping[str, tuple[tuple[float, float, float], ...]] = {
    "gpipe": ((33, 0.2727, 8), (57, 0.1579, 16), (117, 0.1795, 32)),
    "1f1b": ((33, 0.2727, 4), (57, 0.1579, 4), (117, 0.1795, 8)),
    "eager-1f1b": ((33, 0.2727, 7), (57, 0.1579, 7), (117, 0.1795, 15)),
    "interleaved-1f1b": ((28.5, 0.1579, 5.5), (52.5, 0.0857, 5.5), (106.5, 0.0986, 11.5)),
    "looped-bfs": ((28.5, 0.1579, 8), (52.5, 0.0857, 16), (106.5, 0.0986, 32)),
    "zb-h1": ((27, 0.1111, 4), (51, 0.0588, 4), (103, 0.0680, 8)),
    "zb-1p": ((27, 0.1111, 4), (51, 0.0588, 4), (103, 0.0680, 8)),
    "zb-h2": ((27, 0.1111, 7), (51, 0.0588, 7), (103, 0.0680, 15)),
    "zb-2p": ((27, 0.1111, 8), (51, 0.0588, 8), (103, 0.0680, 16)),
    "zb-v": ((25.5, 0.0588, 4), (49.5, 0.0303, 4), (99.5, 0.0352, 8)),
    "v-half": ((26.5, 0.0943, 3), (50.5, 0.0495, 3), (104.5, 0.0813, 5)),
    "v-min": ((29.5, 0.1864, 2), (53.5, 0.1028, 2), (109.5, 0.1233, 4)),
    "1f1b-v": ((31.5, 0.2381, 3), (55.5, 0.1351, 3), (112.5, 0.1467, 6)),
    "seq-1f1b": ((28.5, 0.1579, 2.5), (52.5, 0.0857, 2.5), (106.5, 0.0986, 4.5)),
    "dualpipe-v": ((27, 0.1111, 4.5), (51, 0.0588, 4.5), (103, 0.0680, 8.5)),
    "dualpipe": ((26, 0.0769, 5), (50, 0.0400, 5), (102, 0.0588, 9)),
}
"""Makespan, bubble fraction and peak at each of SIZES, F = I = W = 1 and free transfers."""

ZERO_SPAN_BUBBLE = ("zb-h2", "zb-2p", "zb-v")


@pytest.mark.parametrize("name", GOLDEN)
def test_equal_costs(name: str) -> None:
    for (p, m), (makespan, bubble, peak) in zip(SIZES, GOLDEN[name], strict=True):
        found = measured(name, p, m)
        assert (found.makespan, found.peak) == (makespan, peak)
        assert round(found.bubble, 4) == bubble
        assert found.span == (3 * m if name in ZERO_SPAN_BUBBLE else makespan) or name.startswith(("v-", "dualpipe"))


@pytest.mark.parametrize(
    ("name", "chunks", "options", "makespans", "peaks"),
    [
        ("interleaved-1f1b", 4, {}, (26.25, 50.25, 101.25), (4.75, 4.75, 9.75)),
        ("seq-1f1b", None, {"slices": 4}, (26.25, 50.25, 101.25), (1.75, 1.75, 2.75)),
    ],
)
def test_four_parts_of_a_share(
    name: str, chunks: int | None, options: dict[str, int], makespans: tuple[float, ...], peaks: tuple[float, ...]
) -> None:
    for (p, m), makespan, peak in zip(SIZES, makespans, peaks, strict=True):
        found = measured(name, p, m, chunks=chunks, options=options)
        assert (found.makespan, found.peak) == (makespan, peak)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_whole_backward_takes_as_long_as_its_halves(name: str) -> None:
    if not get(name).splits_backward:
        for (p, m), (makespan, _, _) in zip(SIZES, GOLDEN[name], strict=True):
            assert measured(name, p, m, share=StageCost(20, 40, 0)).makespan == makespan
            assert measured(name, p, m, share=UNEQUAL).makespan == makespan


@pytest.mark.parametrize(
    ("name", "ranks", "microbatches", "makespan", "span"),
    [
        ("zb-h1", 4, 8, 28.2, 28.2),
        ("zb-h1", 4, 16, 52.2, 52.2),
        ("zb-h2", 4, 8, 27.0, 25.8),
        ("zb-2p", 4, 8, None, 25.2),
        ("zb-2p", 4, 16, None, 49.2),
        ("zb-v", 4, 8, 25.8, 24.8),
        ("zb-v", 4, 16, 49.8, 48.8),
        ("v-half", 4, 8, 27.9, None),
        ("v-half", 4, 16, 51.9, None),
        ("v-min", 4, 8, 34.4, None),
        ("v-min", 4, 16, 63.2, None),
        ("1f1b-v", 8, 64, 208.5, None),
        ("v-half", 8, 64, 203.5, None),
        ("v-min", 8, 64, 244.5, None),
        ("zb-v", 8, 64, 196.2, None),
        ("zb-1p", 8, 64, 201.8, None),
        ("dualpipe", 4, 8, 26.4, None),
    ],
)
def test_unequal_costs(name: str, ranks: int, microbatches: int, makespan: float | None, span: float | None) -> None:
    found = measured(name, ranks, microbatches, share=UNEQUAL)
    assert makespan is None or found.makespan == Fraction(str(makespan))
    assert span is None or found.span == Fraction(str(span))


def test_v_min_loses_more_with_every_microbatch_unless_its_passes_are_alike() -> None:
    idle = [measured("v-min", 8, m, share=UNEQUAL).makespan - 3 * m for m in (16, 32, 64)]
    assert idle == [Fraction("23.7"), Fraction("33.3"), Fraction("52.5")]
    for name in ("v-half", "zb-v"):
        constant = {measured(name, 8, m, share=UNEQUAL).makespan - 3 * m for m in (16, 32, 64)}
        assert len(constant) == 1
    assert len({measured("v-min", 8, m).makespan - 3 * m for m in (16, 32, 64)}) == 1


@pytest.mark.parametrize("p", range(1, 17))
def test_the_memory_of_the_v_schedules(p: int) -> None:
    """(p + 4) // 3, (p + 2) // 2, 2p // 3 + 1 and p shares, reached where there are microbatches enough."""
    for name, most in (("v-min", (p + 4) // 3), ("v-half", (p + 2) // 2), ("1f1b-v", 2 * p // 3 + 1), ("zb-v", p)):
        assert max(peak_activations(get(name).build(p, num_microbatches=4 * p))) == 2 * most


@pytest.mark.parametrize(
    ("name", "microbatches", "options", "makespan"),
    [
        ("hanayo", 4, {"waves": 1}, 18),
        ("hanayo", 4, {"waves": 2}, 15),
        ("chimera", 4, {}, 16),
        ("hanayo", 8, {"waves": 1}, 28.5),
        ("hanayo", 8, {"waves": 2}, 26.25),
        ("chimera", 8, {}, 27),
    ],
)
def test_the_fastest_order_known_for_the_placement(
    name: str, microbatches: int, options: dict[str, int], makespan: float
) -> None:
    """p = 4, F = 1, B = 2: proven best orders for these placements, by a solver. One unit of p microbatches reaches
    them; for two units the published order, whose slots are as long for F as for B, does not."""
    found = measured(name, 4, microbatches, options=options).makespan
    assert found == makespan if microbatches == 4 else found > makespan
    even = measured(name, 4, microbatches, share=StageCost(20, 20, 0), options=options).makespan
    chunks = 2 * options.get("waves", 1)
    known = {"chimera": {4: 10, 8: 18}}.get(name, {})
    assert even == known.get(microbatches, 2 * (microbatches + Fraction(3, chunks)))


def profiled(name: str, costs: ScheduleCosts, *, chunks: int, microbatches: int, links: list[Link]) -> Bubble:
    ranks = len(costs.stages) // chunks
    entry = get(name)
    made_for = costs if entry.cost_driven else None
    schedule: Schedule = entry.build(
        ranks, num_microbatches=microbatches, num_chunks=chunks if entry.takes_chunks else None, costs=made_for
    )
    return bubble_of(simulate(schedule, costs=costs.stages, links=links))


ICLR = (
    # m, F, I, W, transfer (microseconds), hidden size, heads, layers, then the published bubbles
    (24, 18522, 18086, 9337, 601, 2304, 24, 24, (0.2431, 0.1090, 0.1585, 0.1083, 0.1585, 0.0433)),
    (32, 18513, 18086, 9331, 626, 2304, 24, 24, (0.1985, 0.0847, 0.1242, 0.0837, 0.1242, 0.0039)),
    (64, 18546, 18097, 9321, 762, 2304, 24, 24, (0.1240, 0.0461, 0.0674, 0.0444, 0.0674, 0.0026)),
    (24, 29718, 29444, 19927, 527, 4096, 32, 32, (0.2347, 0.0827, 0.1323, 0.0698, 0.1323, 0.0029)),
    (32, 29802, 29428, 19530, 577, 4096, 32, 32, (0.1898, 0.0644, 0.1045, 0.0559, 0.1045, 0.0022)),
    (64, 29935, 29621, 19388, 535, 4096, 32, 32, (0.1091, 0.0328, 0.0554, 0.0294, 0.0554, 0.0010)),
)
"""p = 8: 1F1B, interleaved 1F1B, H1, H2, ZB-1p, ZB-2p. 1F1B, interleaved and H1 by makespan, the others by the longest
span of a rank. The interleaved column that the paper prints (.1055, .0818, .0443, .0808, .0628, .0320) is an artefact:
the authors' script looks at the way back to the first rank for the first microbatch of each group only; with all
dependencies it is the one here."""


@pytest.mark.parametrize("row", ICLR)
def test_the_bubbles_of_the_zero_bubble_paper(
    row: tuple[int, int, int, int, int, int, int, int, tuple[float, ...]],
) -> None:
    m, f, i, w, comm, hidden, heads, layers, published = row
    p, sequence = 8, 1024
    links = [Link(comm)] * (p - 1)
    frees = Fraction(2 * hidden + 5 * heads * sequence, 34 * hidden + 5 * heads * sequence)
    costs = ScheduleCosts.of(
        Placement.linear(p), stages=[StageCost(f, i, w)] * p, links=links, input_backward_frees=frees
    )
    found = {name: profiled(name, costs, chunks=1, microbatches=m, links=links) for name in BY_MAKESPAN + BY_SPAN}
    makespans = [round(found[name].bubble_fraction, 4) for name in BY_MAKESPAN]
    assert makespans == [published[0], published[2]]
    spans = [found[name].span_bubble_fraction for name in BY_SPAN]
    assert round(spans[0], 4) == published[3]
    assert all(mine <= theirs + 0.00006 for mine, theirs in zip(spans[1:], published[4:], strict=True))
    v = layers // p
    ticks = [StageCost(f, i, w)] * (p * v)  # a chunk takes 1/v: everything else is v times as long
    chunked = ScheduleCosts.of(Placement.loop(p, num_chunks=v), stages=ticks, links=[Link(comm * v)] * (p * v - 1))
    interleaved = profiled("interleaved-1f1b", chunked, chunks=v, microbatches=m, links=[Link(comm * v)] * (p * v - 1))
    assert round(interleaved.bubble_fraction, 4) == published[1]


BY_MAKESPAN, BY_SPAN = ("1f1b", "zb-h1"), ("zb-h2", "zb-1p", "zb-2p")


def test_the_large_bubble_of_the_first_row_is_the_least_there_is() -> None:
    """.0433 beside .0039 and .0026 looks like a mishap of the heuristic, and is not: 24 microbatches are too few.

    The last rank runs all forwards and input gradients before its last one, from when the first microbatch reaches it;
    that gradient then goes up to rank 0, which began at 0 and still has to do its own and a weight gradient.
    """
    m, f, i, w, comm, hidden, heads, _, _ = ICLR[0]
    links = [Link(comm)] * 7
    frees = Fraction(2 * hidden + 5 * heads * 1024, 34 * hidden + 5 * heads * 1024)
    costs = ScheduleCosts.of(
        Placement.linear(8), stages=[StageCost(f, i, w)] * 8, links=links, input_backward_frees=frees
    )
    least = 7 * (f + comm) + m * (f + i) + 7 * (comm + i) + w
    assert max(profiled("zb-2p", costs, chunks=1, microbatches=m, links=links).span_ns) == least
    assert round(1 - m * (f + i + w) / least, 4) == 0.0433


ARXIV = (
    # p, m, f, i, w, transfer (of one of two chunks, microseconds), then 1F1B, H1, H2, ZB-V
    (16, 48, 14407, 14380, 9676, 1610, (0.2668, 0.1536, 0.0823, 0.0697)),
    (16, 64, 14412, 14393, 9688, 1621, (0.2206, 0.1198, 0.0630, 0.0533)),
    (16, 128, 14316, 14306, 9639, 1619, (0.1390, 0.0637, 0.0325, 0.0274)),
    (32, 96, 9458, 9748, 7288, 879, (0.2676, 0.1429, 0.0629, 0.0593)),
    (32, 128, 9469, 9744, 7306, 892, (0.2204, 0.1111, 0.0478, 0.0451)),
    (32, 256, 9447, 9644, 7193, 887, (0.1362, 0.0593, 0.0251, 0.0236)),
)


@pytest.mark.parametrize("row", ARXIV)
def test_the_bubbles_of_zb_v(row: tuple[int, int, int, int, int, int, tuple[float, ...]]) -> None:
    p, m, f, i, w, comm, published = row
    links = [Link(comm)] * (p - 1)
    linear = ScheduleCosts.of(Placement.linear(p), stages=[StageCost(2 * f, 2 * i, 2 * w)] * p, links=links)
    one, h1, h2 = (profiled(name, linear, chunks=1, microbatches=m, links=links) for name in ("1f1b", "zb-h1", "zb-h2"))
    exact = [round(one.bubble_fraction, 4), round(h1.bubble_fraction, 4), round(h2.span_bubble_fraction, 4)]
    assert exact == list(published[:3])
    between = [Link(comm)] * (2 * p - 1)
    v = ScheduleCosts.of(Placement.snake(p, num_chunks=2), stages=[StageCost(f, i, w)] * (2 * p), links=between)
    found = profiled("zb-v", v, chunks=2, microbatches=m, links=between)
    assert found.span_bubble_fraction <= published[3] + 0.00006


@pytest.mark.slow
@pytest.mark.parametrize(
    ("p", "hidden", "heads", "published"),
    [
        (16, 5120, 40, (0.0697, 0.0306, 0.0065, 0.0035, 0.0035)),
        (32, 6144, 48, (0.0593, 0.0177, 0.0032, 0.0032, 0.0032)),
    ],
)
def test_zb_v_with_more_memory(p: int, hidden: int, heads: int, published: tuple[float, ...]) -> None:
    """Caps of 1, 1.25, 1.5, 1.75 and 2 times p shares, where an input gradient frees what it alone needs."""
    _, m, f, i, w, comm, _ = next(row for row in ARXIV if row[0] == p)
    links = [Link(comm)] * (2 * p - 1)
    frees = Fraction(2 * hidden + 5 * heads * 1024, 34 * hidden + 5 * heads * 1024)
    for quarters, bubble in zip(range(4, 9), published, strict=True):
        costs = ScheduleCosts.of(
            Placement.snake(p, num_chunks=2),
            stages=[StageCost(f, i, w)] * (2 * p),
            links=links,
            memory_cap=Fraction(quarters * p, 4),
            input_backward_frees=frees,
        )
        found = profiled("zb-v", costs, chunks=2, microbatches=m, links=links)
        assert found.span_bubble_fraction <= bubble + 0.00006
