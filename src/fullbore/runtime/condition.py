"""Condition: whether a pipeline can go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from fullbore.errors import ConfigError

__all__ = ["Condition"]


class _State(StrEnum):
    """What is said of a pipeline that cannot do what it is asked for now."""

    READY = ""
    UNDER_WAY = "this pipeline is in the middle of a step or an evaluation; call it when that is over"
    FAILED = "this pipeline has failed in an earlier step and cannot go on; build a new one"
    CLOSED = "this pipeline is closed and cannot go on; build a new one"


class Condition:
    """Ready, in the middle of a step, broken off in one, or closed."""

    def __init__(self) -> None:
        self._state = _State.READY

    @property
    def is_closed(self) -> bool:
        return self._state is _State.CLOSED

    @property
    def is_broken(self) -> bool:
        """Are engines and lanes in the middle of a step, now or for good?"""
        return self._state in (_State.UNDER_WAY, _State.FAILED)

    def require_ready(self) -> None:
        """Raises `ConfigError` otherwise: the other ranks do not come here, or not now."""
        if self._state is not _State.READY:
            raise ConfigError(self._state.value)

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Inside, engines and lanes are in the middle of a step. If it does not end, they stay there."""
        self._state = _State.UNDER_WAY
        try:
            yield
        except BaseException:
            self._state = _State.FAILED
            raise
        self._state = _State.READY

    def close(self) -> None:
        """Nothing is asked of it any more. One that has failed says so also then."""
        if not self.is_broken:
            self._state = _State.CLOSED
