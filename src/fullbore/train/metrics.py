"""MetricsLog: one JSON line a step in ``metrics.jsonl``, and TensorBoard files where that is installed.

Each line is handed to the system before the next step begins, so a process that dies loses nothing; a machine that dies
may lose the last ones. `Logger` is the protocol to implement for another tracker.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from fullbore.errors import DataError

__all__ = ["Logger", "MetricsLog"]


class Logger(Protocol):
    """Takes the numbers of a step."""

    def log(self, values: Mapping[str, float], *, step: int) -> None: ...


class _Step(msgspec.Struct):
    step: int


class MetricsLog:
    """The metrics of a run folder. A context manager: leaving it closes the files."""

    def __init__(self, run_dir: Path, *, start_step: int = 0, tensorboard: bool = True) -> None:
        """Continues an earlier file: its lines from ``start_step`` on are dropped, as those steps run again.

        With ``start_step`` 0, the default, nothing is kept: a run from the beginning has a file from the beginning.
        """
        run_dir.mkdir(parents=True, exist_ok=True)
        self.path = run_dir / "metrics.jsonl"
        kept = _lines_before(start_step, path=self.path) if self.path.exists() else []
        self._file = self.path.open("wb")
        self._file.writelines(kept)
        self._file.flush()
        self._writer = _tensorboard_writer(run_dir / "tensorboard", start_step=start_step) if tensorboard else None

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Writes ``{"step": step, **values}``. What is not finite is written as null: JSON has no NaN."""
        self._file.write(msgspec.json.encode({"step": step, **values}) + b"\n")
        self._file.flush()
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._file.close()
        if self._writer is not None:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _lines_before(step: int, *, path: Path) -> list[bytes]:
    """A last line that a crash cut short is dropped too; any other line that is not one of ours is an error."""
    kept = []
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        if number == len(lines) and not line.endswith(b"\n"):
            break
        try:
            if msgspec.json.decode(line, type=_Step).step < step:
                kept.append(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DataError(f"{path}, line {number}: not a line of metrics ({error}); use another run folder") from None
    return kept


def _tensorboard_writer(folder: Path, *, start_step: int) -> Any:
    """None where tensorboard is not installed: it is an extra."""
    if find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=start_step or None)
