"""The life of a `fullbore.Pipeline` of one rank: it steps, fails or is closed, and gives its modules back."""

from __future__ import annotations

import gc

import pytest
import torch

from fullbore.errors import ConfigError, ModelError, RankFailed, ScheduleError
from fullbore.models.layered import Objective
from fullbore.runtime.pipeline import Pipeline
from fullbore.schedules.registry import get
from tests.support.ranks import SQUARED_ERROR, chain_batch, chain_model
from tests.unit.runtime.one_rank import failing, made, untouched


def test_several_stages_on_one_rank_give_the_known_gradients() -> None:
    """A schedule of several stages on too few ranks runs, or is refused; it never hangs."""
    with made(chain_model(), schedule="looped-bfs") as pipeline:
        assert pipeline.layers_per_stage == (1, 1)
        assert pipeline.step(chain_batch()) == 270.0
        gradients = {name: gradient.item() for name, gradient in pipeline.gradients().items()}
        assert gradients == pytest.approx({"0.weight": 270.0, "1.weight": 180.0})
        assert pipeline.peak_activations == 8
        assert pipeline.evaluate(chain_batch()) == 270.0


def test_a_constructor_that_refuses_gives_the_modules_back() -> None:
    model = chain_model().bfloat16()
    schedule = get("seq-1f1b").build(1, num_microbatches=4)  # built, and then refused by the executor
    with pytest.raises(ScheduleError):
        made(model, schedule=schedule, recompute=["0", "1"])
    assert untouched(model)
    with made(model, recompute=["0", "1"]) as pipeline:
        assert not untouched(model)
        assert pipeline.step({name: tensor.bfloat16() for name, tensor in chain_batch().items()}) > 0
    assert untouched(model)


def test_a_block_that_raises_gives_the_modules_back_and_keeps_its_error() -> None:
    model = chain_model().bfloat16()
    with pytest.raises(ZeroDivisionError), made(model, recompute=["0"]):
        raise ZeroDivisionError
    assert untouched(model)


def test_after_a_failure_release_gives_the_modules_back() -> None:
    model = chain_model().bfloat16()
    pipeline = made(model, objective=Objective(loss_sum=failing, count=SQUARED_ERROR.count), recompute=["0"])
    batch = {name: tensor.bfloat16() for name, tensor in chain_batch().items()}
    with pytest.raises(RankFailed, match="ZeroDivisionError"):
        pipeline.step(batch)
    pipeline.release()
    assert untouched(model)
    with pytest.raises(ConfigError, match="cannot go on"):
        pipeline.step(batch)


def test_an_evaluation_that_fails_leaves_the_modules_in_their_modes() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Dropout(0.5))
    pipeline = made(model, objective=Objective(loss_sum=failing, count=SQUARED_ERROR.count))
    with pytest.raises(RankFailed, match="ZeroDivisionError"):
        pipeline.evaluate(chain_batch())
    assert all(module.training for module in model.modules())


def test_outputs_after_a_failure_are_refused_at_once() -> None:
    pipeline = made(chain_model(), objective=Objective(loss_sum=failing, count=SQUARED_ERROR.count))
    with pytest.raises(RankFailed, match="ZeroDivisionError"):
        pipeline.step(chain_batch())
    with pytest.raises(ConfigError, match="this pipeline has failed in an earlier step and cannot go on"):
        pipeline.outputs()


@pytest.mark.parametrize("recompute", [[], ["1"]])
@pytest.mark.parametrize("again", [[], ["1"]])
def test_a_module_in_a_pipeline_that_is_not_closed_is_refused(recompute: list[str], again: list[str]) -> None:
    """The first to be closed would take its wrappers off in the middle of the other's."""
    model = chain_model()
    first = made(model, recompute=recompute)
    with pytest.raises(
        ModelError, match=r"layer '0' is in another pipeline of this process; close\(\) that one before"
    ):
        made(model, recompute=again)
    assert first.step(chain_batch()) == 270.0
    first.close()
    assert untouched(model)
    with made(model, recompute=again) as second:
        assert second.step(chain_batch()) == 270.0


def test_a_pipeline_that_is_dropped_without_being_closed_gives_its_modules_back() -> None:
    """Nobody could close it any more."""
    model = chain_model()
    dropped = made(model, recompute=["1"])
    assert not untouched(model)
    del dropped
    gc.collect()
    assert untouched(model)
    with made(model) as pipeline:
        assert pipeline.step(chain_batch()) == 270.0


def test_after_closing_nothing_is_clipped() -> None:
    """The norm would be that of one rank's stages."""
    pipeline = Pipeline(chain_model(), num_microbatches=2, objective=SQUARED_ERROR)
    pipeline.step(chain_batch())
    pipeline.close()
    with pytest.raises(ConfigError, match="this pipeline is closed"):
        pipeline.clip_grad_norm(1.0)


def test_after_closing_there_is_no_timeline() -> None:
    """The other ranks do not come, and a timeline of some ranks has another bubble."""
    with made(chain_model()) as pipeline:
        pipeline.step(chain_batch())
        assert pipeline.timeline().spans
    with pytest.raises(ConfigError, match="this pipeline is closed"):
        pipeline.timeline()


def test_after_a_block_that_raised_nothing_trains_without_the_pipelines_hooks() -> None:
    with pytest.raises(ZeroDivisionError), made(chain_model()) as pipeline:
        raise ZeroDivisionError
    with pytest.raises(ConfigError, match="this pipeline is closed"):
        pipeline.step(chain_batch())
