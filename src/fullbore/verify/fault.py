"""ScaledGradient: a fault for `fullbore verify` to find, so that one can see the proof fail."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ScaledGradient"]


@dataclass(frozen=True, slots=True)
class ScaledGradient:
    """A fault put in on purpose: the first step's gradient of one weight times a factor."""

    name: str
    factor: float
