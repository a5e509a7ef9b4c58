"""The least memory cap under which a cut exists: what to say when there is none under the cap that was asked for.

    cap = min over cuts of  max over stages of  fixed bytes + activation bytes * microbatches in flight

Exact, by dynamic programming from the last layer back, one array operation a stage: O(p L^2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fullbore.costs.layer import LayerCost
from fullbore.costs.memory import StageMemory

__all__ = ["least_memory"]

_NONE = np.iinfo(np.int64).max


def least_memory(layers: Sequence[LayerCost], *, in_flight: Sequence[int]) -> int:
    """Bytes of the largest stage in the cut where it is smallest. There are at least as many layers as stages.

    Args:
        in_flight: microbatches whose activations each stage keeps at once; its length is the number of stages.
    """
    each = [StageMemory.of_layers([layer]) for layer in layers]
    fixed = np.cumsum([0, *(memory.fixed_bytes for memory in each)])
    kept = np.cumsum([0, *(memory.activation_bytes for memory in each)])
    after = np.tri(len(layers) + 1, k=0, dtype=bool)  # [first, end]: a run that ends where it begins holds nothing
    best = np.full(len(layers) + 1, _NONE)
    best[-1] = 0
    for count in reversed(in_flight):
        runs = (fixed - fixed[:, None]) + (kept - kept[:, None]) * count
        runs = np.maximum(runs, best)
        runs[after] = _NONE
        best = runs.min(axis=1)
    return int(best[0])
