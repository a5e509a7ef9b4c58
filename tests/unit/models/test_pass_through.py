"""What stands for a foreign module: the identity, with the plain attributes of the original."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fullbore.models.pass_through import PassThrough


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_type = "sliding_attention"
        self.layer_index = 3
        self.table = torch.ones(1000)
        self.linear = nn.Linear(4, 4)


def test_it_answers_for_plain_attributes_and_holds_no_tensor() -> None:
    stand_in = PassThrough(Block())
    assert (stand_in.attention_type, stand_in.layer_index) == ("sliding_attention", 3)
    assert not list(stand_in.parameters())
    for name in ("linear", "table"):
        with pytest.raises(AttributeError):
            getattr(stand_in, name)


def test_it_gives_back_its_first_argument() -> None:
    value = torch.ones(2)
    stand_in = PassThrough(Block())
    assert stand_in(value, attention_mask=None) is value
    assert stand_in(hidden_states=value, position_ids=None) is value
