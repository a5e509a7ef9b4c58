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

__all__ = ["Logger", "MetricsLog"]


class Logger(Protocol):
    """Takes the numbers of a step."""

    def log(self, values: Mapping[str, float], *, step: int) -> None: ...


class MetricsLog:
    """The metrics of a run folder. A context manager: leaving it closes the files."""

    def __init__(self, run_dir: Path, *, tensorboard: bool = True) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self._file = (run_dir / "metrics.jsonl").open("wb")
        self._writer = _tensorboard_writer(run_dir / "tensorboard") if tensorboard else None

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


def _tensorboard_writer(folder: Path) -> Any:
    """None where tensorboard is not installed: it is an extra."""
    if find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder))
