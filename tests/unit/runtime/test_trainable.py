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
    trainable = Trainable(dict(layer.named_parameters()))
    trainable.check()
    layer.bias.requires_grad_(not before)
    was, now = ("trainable", "frozen") if before else ("frozen", "trainable")
    with pytest.raises(ConfigError, match=f"but bias was {was} then and is {now} now; set requires_grad on the model"):
        trainable.check()
    layer.bias.requires_grad_(before)
    trainable.check()
