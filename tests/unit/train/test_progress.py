"""Lines in a log, a bar on a terminal, nothing on stdout."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fullbore.train.progress import BarProgress, LineProgress, describe, open_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    with open_progress(steps=120, log_every=50) as progress:
        assert isinstance(progress, LineProgress)
        progress.say("4 stages")
        for step in range(1, 121):
            progress.log({"loss": 3.21, "tokens_per_s": 8400.4, "bubble_fraction": 0.1818, "lr": 0.1}, step=step)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "4 stages\n"
        "step  50/120  loss 3.2100  8,400 tokens/s  bubble 18.2%\n"
        "step 100/120  loss 3.2100  8,400 tokens/s  bubble 18.2%\n"
        "step 120/120  loss 3.2100  8,400 tokens/s  bubble 18.2%\n"
    )


def test_a_bar_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    stream = Terminal()
    assert isinstance(open_progress(steps=3, stream=stream), BarProgress)
    console = Console(file=stream, force_terminal=True, width=100)
    with BarProgress(console, steps=3) as progress:
        progress.log({"loss": 3.21}, step=2)
        progress.say("[checkpoint] step 2")
    text = stream.getvalue()
    assert "step 2/3" in text
    assert "loss 3.2100" in text
    assert "[checkpoint] step 2" in text
    assert capsys.readouterr().out == ""


def test_only_known_numbers_are_shown() -> None:
    assert describe({"eval_loss": 2.0, "loss": 1.0, "grad_norm": 3.0}) == "loss 1.0000  eval loss 2.0000"
    assert describe({}) == ""
