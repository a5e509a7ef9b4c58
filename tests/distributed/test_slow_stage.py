"""One slow stage, named: the page `docs/slow-stage.md` as a test. What the better cut is said to give, it gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fullbore.timeline.bubble import bubble_of
from fullbore.trace.reader import read_trace
from tests.e2e.documents import ROOT, sections
from tests.support.command import fullbore

_STEPS = 7
_POINTS = 0.03
FILES = {name: text for section in sections(ROOT / "docs" / "slow-stage.md") for name, text in section.files.items()}


def emulate(costs: Path, folder: Path, *, cut: list[int]) -> dict[str, Any]:
    """Four ranks, eight microbatches, this cut."""
    sizes = ["pipeline.stages=4", "pipeline.microbatches=8", f"pipeline.partition={cut}", f"train.steps={_STEPS}"]
    options = [part for pair in (*sizes, f"train.run_dir={folder}") for part in ("--set", pair)]
    ran = fullbore("train", "--emulate", str(costs), *options, "--json")
    assert ran.code == 0, ran.err
    answer: dict[str, Any] = json.loads(ran.out)
    return answer


def gain_of(taken: dict[str, list[int]]) -> float:
    return 1 - min(taken["after"]) / min(taken["before"])


def passes(folder: Path) -> list[int]:
    """What the steps after the first took."""
    trace = read_trace(folder)
    return [bubble_of(trace.timeline(step)).makespan_ns for step in trace.steps[1:]]


@pytest.mark.timeout(360)
@pytest.mark.parametrize(
    ("name", "device_factor", "predicted_ms"),
    [("device.json", 2.0, (550, 405)), pytest.param("layers.json", 1.0, (550, 435), marks=pytest.mark.slow)],
)
def test_the_better_cut_gives_what_is_said(
    name: str, device_factor: float, predicted_ms: tuple[int, int], tmp_path: Path
) -> None:
    """The gain of the re-cut, predicted from the first run and measured by the second, within 3 points.

    Other processes on this machine only ever delay a step, so the fastest one is what a cut takes; where they leave too
    few steps alone, both cuts are run again, and what was measured before still counts.
    """
    costs = tmp_path / name
    costs.write_text(FILES[name])
    before = emulate(costs, tmp_path / "before", cut=[2, 2, 2, 2])
    found = before["slow_stage"]
    assert (found["stage"], found["rank"], found["layers"]) == (2, 2, ["layers.4", "layers.5"])
    assert found["cause"] == "compute"
    assert (found["factor"], found["device_factor"]) == (
        pytest.approx(2, abs=0.1),
        pytest.approx(device_factor, abs=0.1),
    )
    assert found["busy_fraction"] == pytest.approx(480 / 550, abs=0.05)
    assert found["better_layers_per_stage"] == [3, 2, 1, 2]
    assert found["predicted_step_ns"] / 1e6 == pytest.approx(predicted_ms[0], rel=0.03)
    assert found["better_step_ns"] / 1e6 == pytest.approx(predicted_ms[1], rel=0.03)
    emulate(costs, tmp_path / "after", cut=found["better_layers_per_stage"])
    taken = {cut: passes(tmp_path / cut) for cut in ("before", "after")}
    for again in ("second", "third"):
        if abs(found["gain"] - gain_of(taken)) <= _POINTS:
            break
        for cut, layers in (("before", [2, 2, 2, 2]), ("after", [3, 2, 1, 2])):
            emulate(costs, tmp_path / f"{again}-{cut}", cut=layers)
            taken[cut] += passes(tmp_path / f"{again}-{cut}")
    assert abs(found["gain"] - gain_of(taken)) <= _POINTS, f"predicted {found['gain']:.1%} of {taken}"
