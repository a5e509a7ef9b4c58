"""Formulas and layouts as public reports print them, with their letters read as their authors define them."""

from __future__ import annotations

import pytest

from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from fullbore.simulate.memory import peak_activations
from fullbore.timeline.bubble import bubble_of

UNIT = StageCost(1, 1, 1)


def idle(name: str, ranks: int, microbatches: int, cost: StageCost = UNIT) -> int:
    schedule = get(name).build(ranks, num_microbatches=microbatches)
    bubble = bubble_of(simulate(schedule, costs=[cost] * schedule.num_stages))
    return bubble.makespan_ns - bubble.ideal_ns


@pytest.mark.parametrize(("p", "expected"), [(4, 3), (8, 7)])
def test_two_sources_mean_the_same_by_two_formulas(p: int, expected: int) -> None:
    """DeepSeek-V3 #724: (p - 1)(F + B - W) where B is the backward for the input, and (p - 1)(F + B - 2 W) where it is
    the whole backward. With every pass 1, both are p - 1; reading one with the other's B gives 0."""
    forward, for_input, for_weights = 1, 1, 1
    whole = for_input + for_weights
    assert (p - 1) * (forward + for_input - for_weights) == (p - 1) * (forward + whole - 2 * for_weights) == expected
    assert (p - 1) * (forward + for_input - 2 * for_weights) == 0
    assert idle("zb-h1", p, 8) == expected
    entry = get("zb-h1")
    assert entry.span(entry.sizes(p, num_microbatches=8), UNIT) == 24 + expected


def test_the_share_of_wall_time_of_both() -> None:
    split, whole = (
        bubble_of(simulate(get(name).build(4, num_microbatches=8), costs=[UNIT] * 4)) for name in ("zb-h1", "1f1b")
    )
    assert split.bubble_fraction == pytest.approx(3 / 27)
    assert whole.bubble_fraction == pytest.approx(9 / 33)


def test_the_table_of_the_deepseek_v3_report() -> None:
    """arXiv 2412.19437, section 3.2, at its PP16 with F = 1, B = 2 (whole), W = 1, F&B = 3: 45, 15, 14.

    Parameters 1, 1 and 2 times, activations PP, PP and PP + 1; 61 blocks do not divide by 16.
    """
    pp, f, b, w = 16, 1, 2, 1
    assert ((pp - 1) * (f + b), (pp - 1) * (f + b - 2 * w), (pp // 2 - 1) * (f + b + b - 3 * w)) == (45, 15, 14)
    assert [idle(name, pp, 2 * pp) for name in ("1f1b", "zb-1p", "dualpipe")] == [45, 15, 14]
    built = {name: get(name).build(pp, num_microbatches=2 * pp) for name in ("1f1b", "zb-1p", "dualpipe")}
    assert [max(peak_activations(schedule)) for schedule in built.values()] == [pp, pp, pp + 1]
    assert [schedule.num_stages // pp for schedule in built.values()] == [1, 1, 2]
    assert built["dualpipe"].placement.num_streams == 2
    assert 61 % pp


@pytest.mark.parametrize(("layers", "chunks", "factor"), [(24, 3, 1.29), (32, 4, 1.22)])
def test_the_memory_of_the_zero_bubble_papers_runs(layers: int, chunks: int, factor: float) -> None:
    """arXiv 2401.10241, tables 4 and 5: 11, 18, 29 GB for m = 2, 4, 8 and then flat; interleaving keeps
    1 + (p - 1) / (p v) as much."""
    p = 8
    assert layers == p * chunks
    alive = [max(peak_activations(get("1f1b").build(p, num_microbatches=m))) for m in (2, 4, 8, 24, 64)]
    assert alive == [2, 4, 8, 8, 8]
    interleaved = get("interleaved-1f1b").build(p, num_microbatches=24, num_chunks=chunks)
    assert round(max(peak_activations(interleaved)) / chunks / p, 2) == factor


PUBLISHED = [
    # m, F, I, W, transfer, stages per rank, what the paper prints for interleaving
    (24, 18522, 18086, 9337, 601, 3, 0.1055),
    (32, 18513, 18086, 9331, 626, 3, 0.0818),
    (64, 18546, 18097, 9321, 762, 3, 0.0443),
    (24, 29718, 29444, 19927, 527, 4, 0.0808),
    (32, 29802, 29428, 19530, 577, 4, 0.0628),
    (64, 29935, 29621, 19388, 535, 4, 0.0320),
]


@pytest.mark.parametrize(("m", "f", "i", "w", "comm", "v", "published"), PUBLISHED)
def test_interleaving_as_printed_lies_between_free_transfers_and_all_of_them(
    m: int, f: int, i: int, w: int, comm: int, v: int, published: float
) -> None:
    schedule = get("interleaved-1f1b").build(8, num_microbatches=m, num_chunks=v)
    costs = [StageCost(f, i, w)] * schedule.num_stages  # a chunk takes 1/v of it: the delay is v times as long instead
    free = bubble_of(simulate(schedule, costs=costs)).bubble_fraction
    waited = bubble_of(simulate(schedule, costs=costs, links=[Link(comm * v)] * (8 * v - 1))).bubble_fraction
    assert free == pytest.approx(7 / (v * m + 7))
    assert free < published < waited


@pytest.mark.parametrize(("m", "without"), [(24, 0.2258), (32, 0.1795), (64, 0.0986)])
def test_1f1b_without_communication(m: int, without: float) -> None:
    schedule = get("1f1b").build(8, num_microbatches=m)
    bubble = bubble_of(simulate(schedule, costs=[StageCost(18522, 18086, 9337)] * 8))
    assert round(bubble.bubble_fraction, 4) == without
