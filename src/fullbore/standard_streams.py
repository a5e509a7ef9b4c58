"""stdout and stderr of a command, whose readers may leave before it ends.

What a command says on stderr is a courtesy: where nobody can read it (`2> >(head -1)`, a full disk, a terminal that was
closed) the run goes on, and its answer and its exit code are what they would have been. stdout is the answer: a reader
that has seen enough (`fullbore ... | head`) is no failure either, but a full disk is.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["outlive_readers"]


def outlive_readers(*, stdout: type[OSError] = BrokenPipeError) -> None:
    """From here on what stderr refuses is lost without an error, and on stdout what is refused with ``stdout``.

    A closed descriptor becomes /dev/null. A stream that somebody has put in the place of the interpreter's own (a
    test, a notebook) is left alone.
    """
    if sys.stdout is sys.__stdout__:
        sys.stdout = _lossy(sys.stdout, descriptor=1, loses=stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _lossy(sys.stderr, descriptor=2, loses=OSError)


class _LossyFile(io.FileIO):
    """A descriptor that somebody else closes, and on which some failures of writing pass for success."""

    def __init__(self, descriptor: int, *, loses: type[OSError]) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._loses = loses

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except self._loses:
            return memoryview(data).nbytes


def _lossy(stream: TextIO | None, *, descriptor: int, loses: type[OSError]) -> TextIO:
    if stream is None:  # the command was started with this descriptor closed
        _open_nowhere(descriptor)
        return open(descriptor, "w", encoding="utf-8", closefd=False)
    file = _LossyFile(descriptor, loses=loses)
    at_once = isinstance(stream, io.TextIOWrapper) and stream.write_through  # PYTHONUNBUFFERED
    return io.TextIOWrapper(
        file if at_once else io.BufferedWriter(file),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=bool(stream.line_buffering),
        write_through=at_once,
    )


def _open_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere == descriptor:
        os.set_inheritable(descriptor, True)  # by workers
    else:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
