"""Placement: which rank runs which stage.

linear  p=3       stages 0 1 2        ranks 0 1 2
loop    p=3, v=2  stages 0 1 2 3 4 5  ranks 0 1 2 0 1 2
snake   p=3, v=2  stages 0 1 2 3 4 5  ranks 0 1 2 2 1 0

and in which order a microbatch goes through the stages. In all of the above there is one stream, from stage 0 up. A
bidirectional placement holds the model twice and has two streams, which meet every rank from opposite ends:

bidirectional p=3 stages 0 1 2 3 4 5  ranks 0 1 2 0 1 2  streams 0 > 1 > 2 and 5 > 4 > 3

Stage 2p - 1 - k is the mirror of stage k: the same layers, on rank p - 1 - k. So the first layers are stage 0 on rank 0
for one stream and stage 5 on rank 2 for the other. Who follows whom is asked of the placement (`next_stage`,
`previous_stage`), and so is which run of layers a stage holds (`place_of`), never worked out from numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from fullbore.errors import ScheduleError
from fullbore.ids import Rank, StageIndex

__all__ = ["Placement"]


@dataclass(frozen=True, slots=True)
class Placement:
    """The rank of every stage, in stage order, and how many ways lead through the stages."""

    ranks: tuple[Rank, ...]
    num_streams: int = 1
    """1: every microbatch runs stage 0 up to the last. 2: the upper half of the stages mirrors the lower half."""

    def __post_init__(self) -> None:
        if not self.ranks:
            raise ScheduleError("a placement needs at least one stage (given none)")
        if self.num_streams not in (1, 2) or len(self.ranks) % self.num_streams:
            raise ScheduleError(
                f"a placement has one stream, or two over an even number of stages "
                f"(num_streams={self.num_streams}, stages={len(self.ranks)}); use 1, or hold every stage twice"
            )
        missing = sorted(set(range(min(max(self.ranks) + 1, len(self.ranks)))) - set(self.ranks))
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

    @classmethod
    def bidirectional(cls, num_ranks: int) -> Placement:
        """The model twice, in opposite directions: two stages a rank (Chimera, DualPipe)."""
        return cls(cls.loop(num_ranks, num_chunks=2).ranks, num_streams=2)

    @property
    def num_stages(self) -> int:
        return len(self.ranks)

    @property
    def num_ranks(self) -> int:
        return max(self.ranks) + 1

    def rank_of(self, stage: StageIndex) -> Rank:
        return self.ranks[stage]

    @property
    def streams(self) -> tuple[tuple[StageIndex, ...], ...]:
        """The stages of each stream, in the order in which a forward visits them."""
        stages = tuple(map(StageIndex, range(self.num_stages)))
        if self.num_streams == 1:
            return (stages,)
        half = self.num_stages // 2
        return stages[:half], stages[half:][::-1]

    @property
    def stages_per_stream(self) -> int:
        """How many stages a microbatch goes through: into so many runs of layers the model is cut."""
        return self.num_stages // self.num_streams

    def place_of(self, stage: StageIndex) -> int:
        """The stage's place in its stream, from 0 where the batch comes in. A stage and its mirror have the same one:
        it is the number of the run of layers that both hold."""
        return stage if stage < self.stages_per_stream else self.num_stages - 1 - stage

    def next_stage(self, stage: StageIndex) -> StageIndex | None:
        """Where the stage's activation goes; None where the loss is computed."""
        if self.num_streams == 1 or stage < self.num_stages // 2:
            return StageIndex(stage + 1) if stage + 1 < self.num_stages // self.num_streams else None
        return StageIndex(stage - 1) if stage > self.num_stages // 2 else None

    def previous_stage(self, stage: StageIndex) -> StageIndex | None:
        """Where the stage's input gradient goes; None where the batch comes in."""
        if self.num_streams == 1 or stage < self.num_stages // 2:
            return StageIndex(stage - 1) if stage > 0 else None
        return StageIndex(stage + 1) if stage + 1 < self.num_stages else None

    def mirror_of(self, stage: StageIndex) -> StageIndex | None:
        """The stage of the other stream that holds the same layers; None where there is one stream."""
        return StageIndex(self.num_stages - 1 - stage) if self.num_streams == 2 else None

    def stages_of(self, rank: Rank) -> tuple[StageIndex, ...]:
        """The rank's chunks, in model order."""
        return tuple(StageIndex(s) for s, owner in enumerate(self.ranks) if owner == rank)


def _require_positive(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise ScheduleError(f"{name} must be at least 1 ({name}={value})")
