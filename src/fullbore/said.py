"""What an exception says, in one line: for messages that pass on what a model or a library has raised."""

from __future__ import annotations

__all__ = ["first_line", "said"]


def said(error: BaseException) -> str:
    """``TypeError: text``, or the type alone where there is no text."""
    text = first_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def first_line(error: BaseException) -> str:
    """The first line of the message; PyTorch's own can be a page long."""
    try:
        return str(error).strip().split("\n", 1)[0]
    except Exception:
        return "its own message cannot be printed"
