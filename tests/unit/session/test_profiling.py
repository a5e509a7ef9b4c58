from __future__ import annotations

from pathlib import Path

import pytest

from fullbore.config.load import load_run
from fullbore.models.steadiness import LayerRounds
from fullbore.session.profiling import profile_alone
from tests.support.command import TINY_LLAMA


def test_it_says_that_it_measures_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("Four layers and an end at either side.\n" * 200)
    config = load_run(None, overrides=[*TINY_LLAMA[1::2], f"data.source={tmp_path}"])
    measured = profile_alone(config)
    captured = capsys.readouterr()
    said = [
        line
        for line in captured.err.splitlines()
        if not line.startswith("warning: the costs of some layers are uncertain")
    ]
    assert (captured.out, said) == ("", ["measuring 6 layers"])
    assert len(measured.layers) == 6


def test_it_says_on_stderr_that_the_measurement_was_disturbed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text("Four layers and an end at either side.\n" * 200)
    monkeypatch.setattr(LayerRounds, "slowdown", property(lambda _: 2.0))
    profile_alone(load_run(None, overrides=[*TINY_LLAMA[1::2], f"data.source={tmp_path}"]))
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert "longer than in their fastest round" in warnings[0]
