"""Everything fullbore raises on purpose.

    FullboreError
    ├── InputError (ValueError)        the caller can mend it; the command line exits with 2
    │   ├── ConfigError                a run file, an override or a command-line value
    │   ├── CostsError                 a COSTS.json, a stage cost or a link
    │   ├── ScheduleError              sizes a schedule cannot have, or text that is not a schedule
    │   ├── InvalidSchedule            a schedule that breaks a named rule
    │   ├── PartitionError             layers and stages that do not fit
    │   ├── RecipeError                a recipe that contradicts itself
    │   ├── ModelError                 a model that cannot be split exactly
    │   ├── DataError                  text, tokens or a tokenizer that cannot be read
    │   └── TraceError                 a run folder or trace that cannot be read
    └── RunError (RuntimeError)        a run that started and could not finish; exit code 2
        └── RankFailed                 names the rank, its action and the cause
            ├── NeighborLost           this rank is a victim: another one is gone
            └── TransferStalled        this rank waited in vain: another one is late or stuck

A message says what was required, what was given, where, and what to do. The facts also ride as attributes,
so a caller never has to parse the text. They cross process boundaries, facts included: keyword-only arguments do not
survive pickling by themselves, so a class that has some says how it is made again. Our own bugs are `assert`s, never
these.
"""

from __future__ import annotations

from functools import partial

__all__ = [
    "ConfigError",
    "CostsError",
    "DataError",
    "FullboreError",
    "InputError",
    "InvalidSchedule",
    "ModelError",
    "NeighborLost",
    "PartitionError",
    "RankFailed",
    "RecipeError",
    "RunError",
    "ScheduleError",
    "TraceError",
    "TransferStalled",
]


class FullboreError(Exception):
    """Root of the hierarchy above."""


class InputError(FullboreError, ValueError):
    """Something the caller gave cannot be used as it is."""


class ConfigError(InputError):
    """A run file, an override or a command-line value is wrong."""


class CostsError(InputError):
    """A COSTS.json, a stage cost or a link is wrong."""


class ScheduleError(InputError):
    """The schedule does not exist for these sizes, or the text is not a schedule."""


class InvalidSchedule(InputError):
    """A schedule breaks a rule of `fullbore.ir.validate`."""

    def __init__(self, message: str, *, rules: tuple[str, ...]) -> None:
        super().__init__(message)
        self.rules = rules

    def __reduce__(self) -> tuple[object, ...]:
        return (partial(type(self), rules=self.rules), (self.args[0],))


class PartitionError(InputError):
    """The layers cannot be cut into that many stages."""


class RecipeError(InputError):
    """A recipe contradicts itself."""


class ModelError(InputError):
    """The model cannot be split exactly, or a layer cannot be built."""


class DataError(InputError):
    """The text, tokens or tokenizer cannot be read or are too small."""


class TraceError(InputError):
    """A run folder or trace cannot be read."""


class RunError(FullboreError, RuntimeError):
    """A run started and could not finish."""


class RankFailed(RunError):
    """One rank failed; the message names it, the action it was in, and the cause."""

    def __init__(self, message: str, *, rank: int, action: str) -> None:
        super().__init__(message)
        self.rank = rank
        self.action = action

    def __reduce__(self) -> tuple[object, ...]:
        return (partial(type(self), rank=self.rank, action=self.action), (self.args[0],))


class NeighborLost(RankFailed):
    """Another rank is gone; this one noticed while it waited for it."""


class TransferStalled(RankFailed):
    """Something this rank waited for did not come within the timeout."""
