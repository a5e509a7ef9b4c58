from __future__ import annotations

from pathlib import Path

import pytest

from fullbore.config.load import load_run
from fullbore.session.profiling import profile_alone
from tests.support.command import TINY_LLAMA


def test_it_says_that_it_measures_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("Four layers and an end at either side.\n" * 200)
    config = load_run(None, overrides=[*TINY_LLAMA[1::2], f"data.source={tmp_path}"])
    measured = profile_alone(config)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "measuring 6 layers\n")
    assert len(measured.layers) == 6
