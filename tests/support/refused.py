"""What a call on a rank is refused with, as a scenario brings it back."""

from __future__ import annotations

from collections.abc import Callable

from fullbore.errors import FullboreError


def refused(call: Callable[[], object], *, kind: type[Exception] = FullboreError) -> str:
    """``ModelError: message``, or "nothing". Any other exception than a ``kind`` ends the rank."""
    try:
        call()
    except kind as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
