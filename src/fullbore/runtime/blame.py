"""Blame: one line that says what an exception was and where in whose code it arose."""

from __future__ import annotations

import traceback

__all__ = ["blame", "first_line"]


def blame(error: BaseException) -> str:
    """``TypeError: text (model.py:12 in forward)``: the innermost line that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}: {first_line(error)}{where}"


def first_line(error: BaseException) -> str:
    """The first line of the message; PyTorch's own can be a page long."""
    try:
        return str(error).strip().split("\n", 1)[0]
    except Exception:
        return "its own message cannot be printed"
