"""The check of sizes that every schedule starts with."""

from __future__ import annotations

from fullbore.errors import ScheduleError

__all__ = ["require_sizes"]


def require_sizes(name: str, **sizes: int) -> None:
    """Raise `ScheduleError` unless every size is an integer of at least 1."""
    for size, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            given = ", ".join(f"{key}={other}" for key, other in sizes.items())
            raise ScheduleError(f"{name} needs {size} of at least 1 ({given}); use 1 or more")
