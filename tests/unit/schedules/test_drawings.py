"""The drawing in the docstring of every schedule's file is what the simulator says."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from fullbore.costs.stage import StageCost
from fullbore.schedules import registry
from fullbore.schedules.registry import REGISTRY, get
from fullbore.simulate.engine import simulate
from tests.timetable import timetable, timetable_of_chunks, timetable_of_slices

EQUAL, WHOLE = StageCost(1, 1, 1), StageCost(1, 1, 0)


@dataclass(frozen=True)
class Drawn:
    """What the docstring says it draws, and with which names for microbatches."""

    ranks: int
    microbatches: int
    cost: StageCost = EQUAL
    names: Any = timetable_of_chunks
    options: Mapping[str, int] = field(default_factory=dict)


DRAWN = {
    "gpipe": Drawn(4, 4, WHOLE, timetable),
    "1f1b": Drawn(4, 4, WHOLE, timetable),
    "eager-1f1b": Drawn(4, 6, WHOLE, timetable),
    "interleaved-1f1b": Drawn(2, 4, WHOLE),
    "looped-bfs": Drawn(2, 3, WHOLE),
    "zb-h1": Drawn(4, 4, names=timetable),
    "zb-h2": Drawn(3, 5, names=timetable),
    "zb-1p": Drawn(4, 4, names=timetable),
    "zb-2p": Drawn(3, 6, names=timetable),
    "zb-v": Drawn(2, 4),
    "v-half": Drawn(2, 4),
    "v-min": Drawn(2, 4),
    "1f1b-v": Drawn(2, 4),
    "dualpipe-v": Drawn(2, 4),
    "dualpipe": Drawn(2, 4, names=timetable),
    "chimera": Drawn(4, 4, WHOLE, timetable),
    "hanayo": Drawn(2, 2, WHOLE),
    "seq-1f1b": Drawn(2, 2, WHOLE, timetable_of_slices),
}


def lines(name: str) -> list[str]:
    drawn = DRAWN[name]
    schedule = get(name).build(drawn.ranks, num_microbatches=drawn.microbatches, options=drawn.options)
    found: list[str] = drawn.names(simulate(schedule, costs=[drawn.cost] * schedule.num_stages))
    return found


def module_of(name: str) -> str:
    """The file that makes the entry; synthesis is no published schedule and has none."""
    return next(key for key, module in vars(registry).items() if getattr(module, "ENTRY", None) is REGISTRY[name])


@pytest.mark.parametrize("name", DRAWN)
def test_the_docstring_draws_the_schedule(name: str) -> None:
    text = sys.modules[f"fullbore.schedules.{module_of(name)}"].__doc__
    assert text is not None
    shown = [" ".join(line.split()[2:]) for line in text.splitlines() if line.startswith("    rank ")]
    assert shown == lines(name)


def test_every_published_schedule_is_drawn() -> None:
    assert set(DRAWN) == {name for name in REGISTRY if name != "auto"}
