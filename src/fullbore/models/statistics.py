"""Running statistics: what batch and instance normalizations count from their inputs while they train.

A forward that runs twice, on half of the microbatches or in a step that does not count would leave them wrong, so
whoever has it run so looks here for the modules it concerns.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _NormBase  # there is no public name for all of them

__all__ = ["average_without_count", "counts_its_input", "may_hold_statistics"]


def may_hold_statistics(part: nn.Module) -> bool:
    """Is it a normalization whose buffers are running statistics, if it has any?"""
    return isinstance(part, _NormBase)


def counts_its_input(part: nn.Module) -> bool:
    """Does each forward, as the module is now, change its running statistics?"""
    return isinstance(part, _NormBase) and part.training and part.running_mean is not None


def average_without_count(module: nn.Module) -> None:
    """In place, on a copy that is to run without values: with momentum None a forward divides by the number of batches
    so far, and there is none. What it gives has the same form with any momentum."""
    for part in module.modules():
        if isinstance(part, _NormBase) and part.momentum is None:
            part.momentum = 0.1
