"""`fullbore.Pipeline` in one process: a pipeline of one rank, with several stages where the schedule has them."""

from __future__ import annotations

import pytest
import torch

from fullbore.errors import ConfigError, ModelError, RankFailed, ScheduleError
from fullbore.models.layered import Objective
from fullbore.runtime.device import CpuDevice
from fullbore.runtime.pipeline import Pipeline
from fullbore.schedules.registry import get
from tests.support.ranks import SQUARED_ERROR, chain_batch, chain_model


def test_several_stages_on_one_rank_give_the_known_gradients() -> None:
    """A schedule of several stages on too few ranks runs, or is refused; it never hangs."""
    with Pipeline(
        chain_model(), num_microbatches=4, schedule="looped-bfs", objective=SQUARED_ERROR, device=CpuDevice()
    ) as pipeline:
        assert pipeline.layers_per_stage == (1, 1)
        assert pipeline.step(chain_batch()) == 270.0
        gradients = {name: gradient.item() for name, gradient in pipeline.gradients().items()}
        assert gradients == pytest.approx({"0.weight": 270.0, "1.weight": 180.0})
        assert pipeline.peak_activations == 8
        assert pipeline.evaluate(chain_batch()) == 270.0


def test_chunks_and_options_go_to_the_schedule() -> None:
    with Pipeline(
        torch.nn.Sequential(*(torch.nn.Linear(1, 1) for _ in range(3))),
        num_microbatches=4,
        schedule="interleaved-1f1b",
        num_chunks=3,
        schedule_options={"group_size": 2},
        objective=SQUARED_ERROR,
        device=CpuDevice(),
    ) as pipeline:
        expected = get("interleaved-1f1b").build(1, num_microbatches=4, num_chunks=3, options={"group_size": 2})
        assert pipeline.schedule == expected


@pytest.mark.parametrize("more", [{"num_chunks": 1}, {"schedule_options": {"extra_warmup": 1}}])
def test_beside_a_whole_schedule_they_are_refused(more: dict[str, object]) -> None:
    schedule = get("1f1b").build(1, num_microbatches=4)
    with pytest.raises(ScheduleError, match=r"already says its stages per rank .* leave out both, or give a name"):
        Pipeline(
            chain_model(),
            num_microbatches=4,
            schedule=schedule,
            objective=SQUARED_ERROR,
            device=CpuDevice(),
            **more,  # type: ignore[arg-type]
        )


def made(model: torch.nn.Module, **given: object) -> Pipeline:
    """A pipeline of one rank for a chain model's batches, unless said otherwise."""
    arguments = {"num_microbatches": 4, "objective": SQUARED_ERROR, "device": CpuDevice(), **given}
    return Pipeline(model, **arguments)  # type: ignore[arg-type]


def failing(output: torch.Tensor, microbatch: object) -> torch.Tensor:
    raise ZeroDivisionError


def untouched(model: torch.nn.Module) -> bool:
    """Nothing of a pipeline's is left on it: no wrapped forward, no hook on a weight."""
    wrapped = [module for module in model.modules() if "forward" in vars(module)]
    return not wrapped and not any(weight._post_accumulate_grad_hooks for weight in model.parameters())


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


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"recompute": "full"}, r"recompute names layers one by one \(given 'full'\)"),
        ({"objective": torch.nn.functional.mse_loss}, r"objective is a fullbore.Objective"),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused_by_name(given: dict[str, object], wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        made(chain_model(), **given)


def test_a_vector_for_a_loss_is_refused_in_an_evaluation_too() -> None:
    objective = Objective(loss_sum=lambda output, _: output[:, 0], count=SQUARED_ERROR.count)
    pipeline = made(chain_model(), objective=objective, num_microbatches=2)
    with pytest.raises(ModelError, match="gives one number"):
        pipeline.evaluate(chain_batch())


def test_the_weights_of_a_half_precision_model_are_no_torch_optimizers() -> None:
    """Also those that are float32 themselves, as adapters are: the loss is scaled, so nothing is in ``.grad``."""
    model = chain_model()
    model[0].half().requires_grad_(False)
    with made(model) as pipeline, pytest.raises(ConfigError, match="MasterOptimizer"):
        pipeline.parameters()
