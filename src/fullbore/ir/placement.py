"""Placement: which rank runs which stage.

linear  p=3       stages 0 1 2        ranks 0 1 2
loop    p=3, v=2  stages 0 1 2 3 4 5  ranks 0 1 2 0 1 2
snake   p=3, v=2  stages 0 1 2 3 4 5  ranks 0 1 2 2 1 0
"""

from __future__ import annotations

from dataclasses import dataclass

from fullbore.errors import ScheduleError
from fullbore.ids import Rank, StageIndex

__all__ = ["Placement"]


@dataclass(frozen=True, slots=True)
class Placement:
    """The rank of every stage, in stage order."""

    ranks: tuple[Rank, ...]

    def __post_init__(self) -> None:
        if not self.ranks:
            raise ScheduleError("a placement needs at least one stage (given none)")
        missing = sorted(set(range(max(self.ranks) + 1)) - set(self.ranks))
        if missing:
            raise ScheduleError(f"every rank of a placement holds a stage (ranks without one: {missing})")

    @classmethod
    def linear(cls, num_ranks: int) -> Placement:
        """Stage s on rank s."""
        return cls.loop(num_ranks, num_chunks=1)

    @classmethod
    def loop(cls, num_ranks: int, *, num_chunks: int) -> Placement:
        """Stage s on rank s mod p: each chunk runs through all ranks (interleaved schedules)."""
        _require_positive(num_ranks=num_ranks, num_chunks=num_chunks)
        return cls(tuple(Rank(stage % num_ranks) for stage in range(num_ranks * num_chunks)))

    @classmethod
    def snake(cls, num_ranks: int, *, num_chunks: int) -> Placement:
        """Down the ranks and up again, so first and last stage share a rank (V-shaped schedules)."""
        _require_positive(num_ranks=num_ranks, num_chunks=num_chunks)
        down = tuple(range(num_ranks))
        up = tuple(reversed(down))
        return cls(tuple(Rank(r) for chunk in range(num_chunks) for r in (up if chunk % 2 else down)))

    @property
    def num_stages(self) -> int:
        return len(self.ranks)

    @property
    def num_ranks(self) -> int:
        return max(self.ranks) + 1

    def rank_of(self, stage: StageIndex) -> Rank:
        return self.ranks[stage]

    def stages_of(self, rank: Rank) -> tuple[StageIndex, ...]:
        """The rank's chunks, in model order."""
        return tuple(StageIndex(s) for s, owner in enumerate(self.ranks) if owner == rank)


def _require_positive(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise ScheduleError(f"{name} must be at least 1 ({name}={value})")
