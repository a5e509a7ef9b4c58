"""The indices of a pipeline, as distinct types.

They are all small non-negative integers and all sit next to each other in signatures, so the type checker
keeps them apart. Letters used everywhere: p ranks, v chunks per rank, m microbatches per step.
"""

from typing import NewType

__all__ = ["MicrobatchIndex", "Rank", "SliceIndex", "StageIndex"]

Rank = NewType("Rank", int)
"""A process with its device: 0 to p - 1 along the pipeline axis."""

StageIndex = NewType("StageIndex", int)
"""A contiguous run of layers: 0 to p * v - 1 in model order."""

MicrobatchIndex = NewType("MicrobatchIndex", int)
"""A slice of the rank's batch: 0 to m - 1 within one step."""

SliceIndex = NewType("SliceIndex", int)
"""A run of tokens of a microbatch's sequences, where a schedule cuts them: 0 to s - 1 from the first token on."""
