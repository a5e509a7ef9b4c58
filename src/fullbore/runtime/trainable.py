"""Which weights there are, and which of them train, is settled when the pipeline is built.

What crosses between stages follows from it: no gradient is sent to a stage whose weights, and all before it, are
frozen. A weight that is unfrozen later, or put in place of another, would get no gradient, silently; one that is frozen
on one rank alone would leave the others waiting in a reduction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from fullbore.errors import ConfigError

__all__ = ["Trainable"]


class Trainable:
    """A rank's weights and their ``requires_grad``, as they were at first."""

    def __init__(self, weights: Mapping[str, nn.Parameter], *, modules: Iterable[nn.Module]) -> None:
        """``modules``: those that hold the weights."""
        self._weights = weights
        self._before = {name: weight.requires_grad for name, weight in weights.items()}
        name_of = {id(weight): name for name, weight in weights.items()}
        self._places = [
            (part, attribute, weight, name_of[id(weight)])
            for module in modules
            for part in module.modules()
            for attribute, weight in part._parameters.items()
            if weight is not None and id(weight) in name_of
        ]

    def check(self) -> None:
        """Raises ConfigError naming a weight that has been frozen, unfrozen or replaced since."""
        for name, weight in self._weights.items():
            if weight.requires_grad != self._before[name]:
                now, before = ("trainable", "frozen") if weight.requires_grad else ("frozen", "trainable")
                raise ConfigError(
                    f"weights are frozen before the pipeline is built, but {name} was {before} then and is {now} now; "
                    "set requires_grad on the model first, or build a new pipeline"
                )
        for part, attribute, weight, name in self._places:
            if part._parameters.get(attribute) is not weight:
                raise ConfigError(
                    f"the pipeline trains the weights that it was built with, but {name} is another one now; copy "
                    "values into the old one, or build a new pipeline"
                )
