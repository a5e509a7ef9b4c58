"""Blame: one line that says what an exception was and where in whose code it arose."""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Sequence
from importlib import resources
from types import TracebackType
from typing import Any

from fullbore.said import first_line, said

__all__ = ["MORE_MEMORY", "blame", "is_out_of_memory", "whose"]

MORE_MEMORY = "use more stages, smaller microbatches or recomputation, or run fewer ranks on the machine"

_OUR_FILES = os.path.join(str(resources.files("fullbore")), "")
_STANDARD_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")
_MODULE_FILE = os.path.join("torch", "nn", "modules", "module.py")
_NO_MEMORY = ("can't allocate memory", "cannot allocate memory", "not enough memory", "out of memory", "bad_alloc")


def blame(error: BaseException) -> str:
    """``TypeError: text (model.py:12 in forward)``: the innermost line of the model's author, where there is one; else
    the innermost module that was called, ``(in Linear(...))``."""
    frames = [(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    where = f" ({whose(frames[::-1])})" if frames else ""
    if all(_is_library(file) for file, _, _ in frames):
        module = _called(error.__traceback__)
        where = where if module is None else f" (in {module})"
    if is_out_of_memory(error):
        return f"out of memory: {said(error)}{where}; {MORE_MEMORY}"
    return f"{said(error)}{where}"


def whose(frames: Sequence[tuple[str, int, str]]) -> str:
    """``model.py:12 in forward`` of a stack of (file, line, function), innermost first.

    A layer that asks torch for what cannot be fails inside torch; the line to mend is the layer's. Without a line of
    the user's it is fullbore's.
    """
    theirs = (frame for frame in frames if not _is_library(frame[0]))
    ours = (frame for frame in frames if frame[0].startswith(_OUR_FILES))
    name, line, function = next(theirs, None) or next(ours, frames[0])
    return f"{name}:{line} in {function}"


def _called(trace: TracebackType | None) -> str | None:
    """The innermost `torch.nn.Module` whose call did not come back, unless it is one of ours."""
    found: Any = None
    for frame, _ in traceback.walk_tb(trace):
        if frame.f_code.co_name == "_call_impl" and frame.f_code.co_filename.endswith(_MODULE_FILE):
            found = frame.f_locals.get("self")
    kind = type(found)
    if found is None or kind.__module__.startswith("fullbore."):
        return None
    return repr(found) if not found._modules and kind.__module__.startswith("torch.") else kind.__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Python's, torch's (a RuntimeError on the CPU, which says so only in words) or the system's."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(words in first_line(error).lower() for words in _NO_MEMORY)


def _is_library(filename: str) -> bool:
    """Ours, torch's or Python's own, rather than the user's or that of a library of models."""
    if filename.startswith((_OUR_FILES, "<")):
        return True
    if "site-packages" in filename or "dist-packages" in filename:
        return f"{os.sep}torch{os.sep}" in filename
    return filename.startswith(_STANDARD_LIBRARY)
