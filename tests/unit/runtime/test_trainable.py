"""Which weights train is settled when the pipeline is built."""

from __future__ import annotations

import pytest
from torch import nn

from fullbore.errors import ConfigError
from fullbore.runtime.trainable import Trainable


@pytest.mark.parametrize("before", [True, False])
def test_a_change_is_named_and_taking_it_back_mends_it(before: bool) -> None:
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(before)
    trainable = Trainable(dict(layer.named_parameters()), modules=[layer])
    trainable.check()
    layer.bias.requires_grad_(not before)
    was, now = ("trainable", "frozen") if before else ("frozen", "trainable")
    with pytest.raises(ConfigError, match=f"but bias was {was} then and is {now} now; set requires_grad on the model"):
        trainable.check()
    layer.bias.requires_grad_(before)
    trainable.check()


def test_a_weight_that_was_replaced_is_named() -> None:
    """It would compute, and get no gradient."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    trainable = Trainable(dict(model.named_parameters()), modules=[model])
    model[1].weight.data = nn.Linear(2, 2).weight.data
    trainable.check()
    model[1].weight = nn.Parameter(model[1].weight.detach().clone())
    with pytest.raises(ConfigError, match=r"but 1\.weight is another one now; copy values into the old one"):
        trainable.check()
