"""Recipe: what to run. As JSON it is what `train`, `verify` and `bench` take with ``--recipe``.

Every axis of a layout is named from the start; one that is not built yet is refused above 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fullbore.errors import RecipeError

__all__ = ["Layout", "Recipe"]


@dataclass(frozen=True, slots=True)
class Layout:
    """How many ranks each axis has. ``pipeline * tensor * data * context * expert`` is the world size."""

    pipeline: int = 1
    chunks: int = 1
    tensor: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    streams: int = 1
    """No axis: 2 where the pipeline's chunks are the model twice, in opposite directions."""

    def __post_init__(self) -> None:
        for axis in ("pipeline", "chunks", "tensor", "data", "context", "expert"):
            size = getattr(self, axis)
            if size < 1:
                raise RecipeError(f"every axis of a layout is at least 1 ({axis}={size})")
            if size > 1 and axis in ("tensor", "data", "context", "expert"):
                raise RecipeError(f"the {axis} axis is not built yet: use 1 ({axis}={size})")
        if self.streams not in (1, 2) or self.num_stages % self.streams:
            raise RecipeError(
                f"a layout has one stream, or two over an even number of stages (streams={self.streams}, "
                f"pipeline={self.pipeline}, chunks={self.chunks})"
            )

    @property
    def num_stages(self) -> int:
        return self.pipeline * self.chunks

    @property
    def stages_per_stream(self) -> int:
        """Into so many runs of layers the model is cut."""
        return self.num_stages // self.streams


@dataclass(frozen=True, slots=True)
class Recipe:
    """One configuration, ready to run. The layers of stage s are the s-th run of ``layers_per_stage``; where there are
    two streams, those of its mirror too."""

    layout: Layout
    microbatch_size: int
    microbatches: int
    layers_per_stage: tuple[int, ...]
    schedule: str
    accumulation: int = 1
    recompute: tuple[str, ...] = ()
    """Names of the layers that run their forward again in the backward."""

    recompute_ahead: bool = False
    """They do so before it, in an action of its own (R)."""

    schedule_options: dict[str, int] = field(default_factory=dict)
    memory_cap: float | None = None
    """Most microbatches' activations that a rank may keep, of all its layers. What is made for costs is made for it;
    None: the recipe does not say."""

    def __post_init__(self) -> None:
        for name in ("microbatch_size", "microbatches", "accumulation"):
            if getattr(self, name) < 1:
                raise RecipeError(f"{name} must be at least 1 ({name}={getattr(self, name)})")
        if len(self.layers_per_stage) != self.layout.stages_per_stream:
            of_stream = "" if self.layout.streams == 1 else " of a stream"
            raise RecipeError(
                f"layers_per_stage needs one count for each of the {self.layout.stages_per_stream} stages{of_stream} "
                f"(given {len(self.layers_per_stage)}: {list(self.layers_per_stage)})"
            )
        if self.recompute_ahead and not self.recompute:
            raise RecipeError(
                "recompute_ahead runs the recomputation of layers before their backward, and recompute names no layer; "
                "name some, or set it to false"
            )
        if self.memory_cap is not None and not (self.memory_cap > 0 and math.isfinite(self.memory_cap)):
            raise RecipeError(f"memory_cap is a finite number above 0 (memory_cap={self.memory_cap}); or leave it out")
        if min(self.layers_per_stage) < 1:
            raise RecipeError(f"every stage holds at least one layer (layers_per_stage={list(self.layers_per_stage)})")

    @property
    def global_batch(self) -> int:
        """Sequences per optimizer step."""
        return self.microbatch_size * self.microbatches * self.accumulation * self.layout.data

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The first layer of each stage of a stream, and the number of layers at the end: ``stages_per_stream`` + 1
        numbers from 0."""
        edges = [0]
        for count in self.layers_per_stage:
            edges.append(edges[-1] + count)
        return tuple(edges)
