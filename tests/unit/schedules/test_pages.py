"""The numbers and the picture on every schedule's page in docs/schedules are what the simulator says."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest

from fullbore.costs.stage import StageCost
from fullbore.ir.schedule import Schedule
from fullbore.schedules.registry import REGISTRY, get
from fullbore.simulate.engine import simulate
from fullbore.simulate.memory import peak_shares
from fullbore.timeline.bubble import bubble_of
from tests.unit.schedules.test_drawings import DRAWN

PAGES = Path(__file__).parents[3] / "docs" / "schedules"
SIZE = re.compile(r"(?:v = (\d+): )?p = (\d+), m = (\d+)")


def built(name: str, header: str, chunks: list[int | None]) -> Schedule:
    """Of a column; how many stages a rank has is said where it changes."""
    size = SIZE.fullmatch(header)
    assert size is not None, header
    chunks[0] = int(size[1]) if size[1] else chunks[0]
    return get(name).build(int(size[2]), num_microbatches=int(size[3]), num_chunks=chunks[0])


def number(value: Fraction) -> str:
    return f"{float(value):g}"


def percent(share: float) -> str:
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + " %"


def said_of(schedule: Schedule) -> dict[str, str]:
    """What stands in each row, by the first words of its label."""
    parts = schedule.forwards_per_share
    bubble = bubble_of(simulate(schedule, costs=[StageCost(1, 1, 1)] * schedule.num_stages))
    shares = peak_shares(schedule)
    kept = ", ".join(map(number, shares))
    if min(shares) == max(shares):
        kept = number(shares[0])
    elif len(shares) > 4:
        kept = f"{number(shares[0])}, {number(shares[1])}, …, {number(shares[-1])}"
    return {
        "makespan": number(Fraction(bubble.makespan_ns, parts)),
        "idle time of a rank": number(Fraction(bubble.makespan_ns - bubble.ideal_ns, parts)),
        "idle between": number(Fraction(max(bubble.span_ns) - bubble.ideal_ns, parts)),
        "bubble fraction": percent(bubble.bubble_fraction),
        "bubble overhead": percent(bubble.bubble_overhead),
        "activations alive": kept,
        "copies of the parameters": str(schedule.placement.num_streams),
    }


@pytest.mark.parametrize("name", REGISTRY)
def test_the_table(name: str) -> None:
    lines = (PAGES / f"{name}.md").read_text(encoding="utf-8").splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("| quantity |"))
    header = [cell.strip() for cell in lines[first].strip("|").split("|")][2:]
    chunks: list[int | None] = [None]
    expected = [said_of(built(name, column, chunks)) for column in header]
    seen = set()
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        label, _, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        key = next((one for one in expected[0] if label.startswith(one)), None)
        if key is None:
            assert label.startswith("messages")
            continue
        seen.add(key)
        assert cells == [column[key] for column in expected], label
    assert {"makespan", "idle time of a rank", "bubble fraction", "bubble overhead", "activations alive"} <= seen


@pytest.mark.parametrize("name", REGISTRY)
def test_the_picture(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8").split("```")[1]
    size = re.search(r"p = (\d+),.*? m = (\d+)", text)
    assert size is not None
    drawn = DRAWN[name]
    schedule = get(name).build(int(size[1]), num_microbatches=int(size[2]), options=drawn.options)
    expected = drawn.names(simulate(schedule, costs=[drawn.cost] * schedule.num_stages))
    assert [" ".join(line.split()[2:]) for line in text.splitlines() if line.startswith("rank ")] == expected


@pytest.mark.parametrize("name", REGISTRY)
def test_the_paper(name: str) -> None:
    """The number of the report stands on the page and in the file."""
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    number_of_report = re.search(r"arXiv (\d{4}\.\d{5})", get(name).paper)
    assert number_of_report is not None
    assert number_of_report[0] in text
