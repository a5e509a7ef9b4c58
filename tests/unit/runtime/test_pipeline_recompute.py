"""Which layers of a pipeline recompute, and when: inside of their backward, or ahead of it in actions of their own."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from fullbore.errors import ConfigError, ScheduleError
from fullbore.ir.action import Kind
from fullbore.models.sequential import sequential_model
from fullbore.runtime.argument_kinds import required_layers
from fullbore.schedules.recompute_ahead import recompute_ahead
from fullbore.schedules.registry import get
from tests.support.ranks import chain_batch, chain_model
from tests.unit.runtime.one_rank import made, untouched


def test_recomputation_ahead_is_of_the_stages_that_recompute() -> None:
    with pytest.raises(ConfigError, match="and no layer recomputes; name layers in recompute, or leave it out"):
        made(chain_model(), schedule="looped-bfs", recompute_ahead=True)
    with made(chain_model(), schedule="looped-bfs", recompute=("1",), recompute_ahead=True) as pipeline:
        again = [str(a) for a in pipeline.schedule.orders[0] if a.kind is Kind.RECOMPUTE]
        assert again == ["1R0", "1R1", "1R2", "1R3"]
        assert pipeline.step(chain_batch()) == 270.0
        assert [str(span.action) for span in pipeline.last_spans() if "R" in str(span.action)] == again


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    "given", [{"1", "0"}, np.array(["1", "0"]), ["1", "0", "1"], {"1": 0, "0": 0}], ids=["set", "array", "list", "dict"]
)
def test_layers_to_recompute_are_in_the_order_of_the_model_however_they_are_named(given: Any, ahead: bool) -> None:
    """A set's is another in every process, and ranks with different ones would be refused."""
    assert required_layers(sequential_model(chain_model()), given) == ("0", "1")
    with made(chain_model(), recompute=given, recompute_ahead=ahead) as pipeline:
        assert pipeline.step(chain_batch()) == 270.0


@pytest.mark.parametrize("ahead", [False, True])
def test_a_module_that_is_a_layer_of_two_stages_recomputes_in_both(ahead: bool) -> None:
    """The second stage meets what the first one has wrapped, and takes it for no other pipeline's.

    w = 3 and the mean of x^2 is 7.5: the loss is w^4 * 7.5, its gradient 4 w^3 * 7.5.
    """
    layer = chain_model()[1]
    model = torch.nn.Sequential(layer, layer)
    with made(model, schedule="looped-bfs", recompute=("0", "1"), recompute_ahead=ahead) as pipeline:
        assert pipeline.layers_per_stage == (1, 1)
        assert pipeline.step(chain_batch()) == 607.5
        assert {name: gradient.item() for name, gradient in pipeline.gradients().items()} == {"0.weight": 810.0}
        again = {str(span.action) for span in pipeline.last_spans() if "R" in str(span.action)}
        assert again == {f"{stage}R{index}" for stage in (0, 1) for index in range(4)}
    assert untouched(model)


def test_an_unknown_layer_to_recompute_is_refused_with_the_one_that_was_meant() -> None:
    for ahead in (True, False):
        with pytest.raises(ConfigError, match=r"^recompute .*\('head' is none of them\); the layers are 0, 1$"):
            made(chain_model(), recompute=("head",), recompute_ahead=ahead)
    named = torch.nn.Sequential(OrderedDict(first=torch.nn.Linear(3, 3), second=torch.nn.Linear(3, 3)))
    with pytest.raises(ConfigError, match="did you mean 'second'"):
        made(named, recompute=("secnod",))


def test_a_schedule_with_recomputations_needs_layers_that_recompute_and_is_taken_as_it_is() -> None:
    schedule = recompute_ahead(get("1f1b").build(1, num_microbatches=4))
    with pytest.raises(ScheduleError, match=r"'1f1b' has recomputations \(R\) and no layer recomputes; name layers in"):
        made(chain_model(), schedule=schedule)
    for flag in (True, False):
        with made(chain_model(), schedule=schedule, recompute=("0",), recompute_ahead=flag) as pipeline:
            assert pipeline.schedule == schedule
            assert pipeline.step(chain_batch()) == 270.0
