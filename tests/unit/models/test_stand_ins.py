"""What stands for a module of another stage: what came from there, or a blank without memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fullbore.models.hugging_face.flow import Blank, Effect, Fact, Flow, PartCall, Same, Value
from fullbore.models.hugging_face.stand_ins import Earlier, Later, Passage, Reached, Recorded

HIDDEN = Value("block", 0, ("returned", 0))
KEYS = Value("block", 0, ("left in", "kwargs", "keys", "full", 0))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_type = "sliding_attention"
        self.layer_index = 3
        self.table = torch.ones(1000)
        self.linear = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, hidden: Any, mask: Any, keys: Any) -> Any:
        keys["full"] = hidden + 1
        return hidden * 2, mask


def flow(*, overwritten: bool = False) -> Flow:
    facts = {v: Fact((2, 3), torch.float32, gradient=True, overwritten=overwritten) for v in (HIDDEN, KEYS)}
    return Flow((call(),), frozenset(), facts)


def call() -> PartCall:
    """Of `Block`, as `trace_flow` writes it down."""
    module = Block()
    _, spec = torch.utils._pytree.tree_flatten(module(torch.ones(2, 3), None, {}))
    _, one = torch.utils._pytree.tree_flatten(torch.ones(1))
    size = (("args", 0), 0), (("args", 0), 1)
    effect = Effect(("kwargs", "keys"), "full", one, (Blank(KEYS, size),))
    return PartCall("block", frozenset(), spec, (Blank(HIDDEN, size), Same(("args", 1))), (effect,))


def earlier(
    *, blank: float = 0.0, given: dict[Value, torch.Tensor] | None = None, overwritten: bool = False
) -> Earlier:
    passage = Passage(blank=blank)
    passage.begin(given or {}, device=torch.device("cpu"))
    return Earlier(Block(), part="block", flow=flow(overwritten=overwritten), passage=passage, hidden_size=4)


def test_it_does_not_run_what_another_stage_has_wrapped() -> None:
    """A model that came with weights is cut in place, so its modules carry the wrappers of the stage that runs them."""
    original, ran = Block(), []
    inner = original.forward
    original.forward = lambda *args, **more: (ran.append("the original"), inner(*args, **more))[1]
    passage = Passage(blank=0.0)
    passage.begin({HIDDEN: torch.full((2, 3), 7.0)}, device=torch.device("cpu"))
    stand_in = Earlier(original, part="block", flow=flow(), passage=passage, hidden_size=4)
    hidden, _ = stand_in(torch.ones(2, 3), None, keys={})
    assert torch.equal(hidden, torch.full((2, 3), 7.0))
    assert ran == []


def test_it_answers_for_plain_attributes_and_holds_no_tensor() -> None:
    stand_in = earlier()
    assert (stand_in.attention_type, stand_in.layer_index) == ("sliding_attention", 3)
    assert (stand_in.scale.dtype, stand_in.scale.numel()) == (torch.float64, 0)
    assert not list(stand_in.parameters())
    for name in ("linear", "table"):
        with pytest.raises(AttributeError):
            getattr(stand_in, name)


def test_what_did_not_come_is_a_blank_without_memory() -> None:
    mask, keys = torch.ones(1), dict[str, Any]()
    hidden, again = earlier(blank=float("nan"))(torch.zeros(2, 3), mask, keys=keys)
    assert hidden.shape == (2, 3)
    assert hidden.isnan().all()
    assert hidden.untyped_storage().nbytes() == 4
    assert again is mask
    assert keys == {}


def test_what_came_is_given_and_left_where_it_was_left() -> None:
    came, keys = {HIDDEN: torch.ones(2, 3), KEYS: torch.full((2, 3), 5.0)}, dict[str, Any]()
    hidden, _ = earlier(given=came)(torch.zeros(2, 3), None, keys=keys)
    assert hidden is came[HIDDEN]
    assert keys["full"] is came[KEYS]


def test_a_blank_that_the_model_writes_to_has_memory_of_its_own() -> None:
    hidden, _ = earlier(overwritten=True)(torch.zeros(2, 3), None, keys={})
    hidden.add_(1.0)
    assert hidden.untyped_storage().nbytes() == 24


def test_a_module_of_a_later_stage_ends_the_pass() -> None:
    with pytest.raises(Reached):
        Later(Block())(torch.ones(1))


def test_what_leaves_is_kept_and_the_module_is_still_itself() -> None:
    passage, block = Passage(blank=0.0), Block()
    passage.begin({}, device=torch.device("cpu"))
    recorded = Recorded(block, part="block", flow=flow(), passage=passage)
    assert (recorded.attention_type, recorded.linear) == ("sliding_attention", block.linear)
    with pytest.raises(AttributeError):
        recorded.nothing  # noqa: B018
    keys: dict[str, Any] = {}
    output = recorded(torch.ones(2, 3), None, keys=keys)
    hidden, left = passage.leave([HIDDEN, KEYS])
    assert hidden is output[0]
    assert left is keys["full"]
    assert not passage.kept
