"""Which weights train is settled when the pipeline is built.

What crosses between stages follows from it: no gradient is sent to a stage whose weights, and all before it, are
frozen. A weight that is unfrozen later would get none, silently; one that is frozen on one rank alone would leave the
others waiting in a reduction.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from fullbore.errors import ConfigError

__all__ = ["Trainable"]


class Trainable:
    """``requires_grad`` of a rank's weights, as it was at first."""

    def __init__(self, weights: Mapping[str, nn.Parameter]) -> None:
        self._weights = weights
        self._before = {name: weight.requires_grad for name, weight in weights.items()}

    def check(self) -> None:
        """Raises ConfigError naming a weight that has been frozen or unfrozen since."""
        for name, weight in self._weights.items():
            if weight.requires_grad != self._before[name]:
                now, before = ("trainable", "frozen") if weight.requires_grad else ("frozen", "trainable")
                raise ConfigError(
                    f"weights are frozen before the pipeline is built, but {name} was {before} then and is {now} now; "
                    "set requires_grad on the model first, or build a new pipeline"
                )
