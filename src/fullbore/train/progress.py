"""What a person sees while training: a bar on a terminal, plain lines elsewhere (a batch system's log).

Both are Loggers and write to stderr, where no reader is needed (`fullbore.standard_streams`); stdout belongs to the
result.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["BarProgress", "LineProgress", "Silence", "TrainProgress", "describe", "open_progress"]


class TrainProgress(Protocol):
    """A Logger that can also say a sentence. A context manager."""

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Step ``step``, counted from 1, is done."""

    def say(self, text: str) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def open_progress(*, steps: int, log_every: int = 1, stream: TextIO | None = None) -> TrainProgress:
    """A bar where ``stream`` (stderr) is a terminal, else a line every ``log_every`` steps and at the last."""
    stream = sys.stderr if stream is None else stream
    if stream.isatty():
        return BarProgress(Console(file=stream), steps=steps)
    return LineProgress(stream, steps=steps, log_every=log_every)


def describe(values: Mapping[str, float]) -> str:
    """The numbers people watch, of those that are there."""
    formats = {
        "loss": "loss {:.4f}",
        "eval_loss": "eval loss {:.4f}",
        "tokens_per_s": "{:,.0f} tokens/s",
        "bubble_fraction": "bubble {:.1%}",
    }
    return "  ".join(text.format(values[name]) for name, text in formats.items() if name in values)


class Silence:
    """Says and writes nothing: what every rank but the first has."""

    def log(self, values: Mapping[str, float], *, step: int) -> None: ...

    def say(self, text: str) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class LineProgress:
    """``step  12/120  loss 3.2100  8,400 tokens/s  bubble 18.2%``"""

    def __init__(self, stream: TextIO, *, steps: int, log_every: int) -> None:
        self._stream = stream
        self._steps = steps
        self._log_every = log_every

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        if step % self._log_every == 0 or step == self._steps:
            self.say(f"step {step:>{len(str(self._steps))}}/{self._steps}  {describe(values)}")

    def say(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stream.flush()


class BarProgress:
    """One line that is redrawn; sentences scroll by above it."""

    def __init__(self, console: Console, *, steps: int) -> None:
        self._progress = Progress(
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task("train", total=steps, numbers="")

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        self._progress.update(self._task, completed=step, numbers=describe(values))

    def say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()
