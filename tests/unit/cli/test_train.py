"""What `fullbore train` refuses before it starts a process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.test_main import run

LAYERS = [{"name": f"l{i}", "forward_ns": 1, "backward_input_ns": 1, "backward_weight_ns": 1} for i in range(4)]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"faults": [{"kind": "slow", "rank": 4, "factor": 2.0}]}, "a fault is of a rank that is there: 0 to 3"),
        ({"links": [{}, {}]}, "links are one for each boundary between stages: 3 for 4 stages (given 2)"),
        ({"jitters": 0.1}, "unknown key 'jitters'"),
        ({"layers": []}, "with at least one layer"),
    ],
)
def test_an_emulation_that_does_not_fit_starts_nothing(
    more: dict[str, Any],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fullbore.cli.train.run_ranks", _started)
    costs, folder = tmp_path / "costs.json", tmp_path / "run"
    costs.write_text(json.dumps({"layers": LAYERS, **more}))
    options = ("--set", "pipeline.stages=4", "--set", f"train.run_dir={folder}")
    code, out, err = run(capsys, "train", "--emulate", str(costs), *options, "--json")
    assert (code, out) == (2, "")
    assert message in err
    assert not folder.exists()


def _started(*given: object, **more: object) -> None:
    raise AssertionError("a process was started")
