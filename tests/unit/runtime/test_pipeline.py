"""`fullbore.Pipeline` in one process: a pipeline of one rank, with several stages where the schedule has them."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from fullbore.errors import ConfigError, ModelError, RankFailed, ScheduleError
from fullbore.ir.action import Kind
from fullbore.models.layered import Objective
from fullbore.models.sequential import sequential_model
from fullbore.runtime.argument_kinds import required_layers
from fullbore.runtime.device import CpuDevice
from fullbore.runtime.pipeline import Pipeline
from fullbore.schedules.recompute_ahead import recompute_ahead
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


@pytest.mark.parametrize(
    "cut", ["parameters", "profile", 2, [1.0, 1.0], [True, True], ["1", "1"], [], np.ones(2), np.ones((2, 2), int)]
)
def test_a_cut_is_equal_or_whole_numbers(cut: Any) -> None:
    with pytest.raises(ConfigError, match=r'layers_per_stage is "equal" or a whole number of layers for each stage'):
        Pipeline(chain_model(), num_microbatches=4, layers_per_stage=cut, objective=SQUARED_ERROR, device=CpuDevice())


def test_counts_of_numpy_are_a_cut() -> None:
    """As a search gives them; an array of several is neither true nor false."""
    cut: Any = np.array([1, 1])
    with made(chain_model(), schedule="looped-bfs", layers_per_stage=cut) as pipeline:
        assert pipeline.layers_per_stage == (1, 1)


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
        ({"recompute": None}, r"recompute names layers one by one \(given None\)"),
        ({"recompute": True}, r"recompute names layers one by one \(given True\)"),
        ({"recompute": [5]}, r"recompute names layers one by one \(given \[5\]\)"),
        ({"recompute_ahead": "no"}, r"recompute_ahead is True or False \(recompute_ahead='no'\)"),
        ({"objective": torch.nn.functional.mse_loss}, r"objective is a fullbore.Objective"),
        ({"device": None}, r"device is auto, cpu, .* \(device=None\)"),
        ({"device": 5}, r"device is auto, cpu, .* \(device=5\)"),
        ({"device": CpuDevice}, r"device is auto, cpu, .* \(device=<class"),
        ({"schedule": None}, r"schedule is a registered name or a Schedule \(schedule=None\)"),
        ({"schedule": ["1f1b"]}, r"schedule is a registered name or a Schedule \(schedule=\['1f1b'\]\)"),
        ({"schedule_options": "a"}, r"schedule_options is a mapping .* \(schedule_options='a'\)"),
        ({"schedule_options": {3: 4}}, r"schedule_options is a mapping .* \(schedule_options={3: 4}\)"),
        ({"mesh": 5}, r"mesh is a Mesh or None \(mesh=5\)"),
        ({"timeout_s": None}, r"timeout_s is a number of seconds above 0, at most 1e6 \(timeout_s=None\)"),
        ({"timeout_s": "5"}, "timeout_s='5'"),
        ({"timeout_s": math.nan}, "timeout_s=nan"),
        ({"timeout_s": math.inf}, "timeout_s=inf"),
        ({"timeout_s": 0}, "timeout_s=0"),
        ({"timeout_s": -1}, "timeout_s=-1"),
        ({"compile": "x"}, r"compile is True or False \(compile='x'\)"),
        ({"seed": None}, r"seed is a whole number of at least 0, below 2\*\*63 \(seed=None\)"),
        ({"seed": "a"}, "seed='a'"),
        ({"seed": 1.5}, "seed=1.5"),
        ({"seed": 2**63}, "seed=9223372036854775808"),
        ({"instrument": 5}, r"instrument is what has record\(span\) and step_ended\(step\), or None \(instrument=5\)"),
        ({"board": 5}, r"board is a ProgressBoard or None \(board=5\)"),
        ({"num_chunks": "2"}, r"num_chunks is a whole number of at least 1, or None .* \(num_chunks='2'\)"),
        ({"num_chunks": 2.0}, "num_chunks=2.0"),
        ({"num_chunks": True}, "num_chunks=True"),
        ({"num_chunks": 0}, "num_chunks=0"),
        ({"num_microbatches": 1.5}, r"num_microbatches is a whole number of at least 1 \(num_microbatches=1.5\)"),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused_by_name(given: dict[str, object], wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        made(chain_model(), **given)


def test_a_device_of_torch_is_one() -> None:
    with made(chain_model(), device=torch.device("cpu")) as pipeline:
        assert pipeline.step(chain_batch()) == 270.0
    with pytest.raises(ConfigError, match=r"fullbore runs on cpu and cuda \(device='meta'\)"):
        made(chain_model(), device=torch.device("meta"))


@pytest.mark.parametrize("given", [{"loss_sum": 5}, {"count": 6}])
def test_an_objective_is_made_of_functions(given: Any) -> None:
    (name,) = given
    with pytest.raises(ModelError, match=rf"{name} of an Objective is a function \(given {name}={given[name]}\)"):
        Objective(**{"loss_sum": SQUARED_ERROR.loss_sum, "count": SQUARED_ERROR.count, **given})


def without(key: str, *, microbatch: int | None = None) -> Any:
    """Batches of the chain that lack something: the whole one, or one of its four microbatches."""
    if microbatch is None:
        return {name: tensor for name, tensor in chain_batch().items() if name != key}
    parts = [{name: tensor[i : i + 1] for name, tensor in chain_batch().items()} for i in range(4)]
    del parts[microbatch][key]
    return parts


SPARSE = torch.eye(4).to_sparse()


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (
            lambda p: p.evaluate(chain_batch(), num_microbatches=1.5),
            r"a whole number of microbatches, at least 1 \(num_microbatches=1.5\)",
        ),
        (
            lambda p: p.evaluate(chain_batch(), num_microbatches="2"),
            r"a whole number of microbatches, at least 1 \(num_microbatches='2'\)",
        ),
        (lambda p: p.evaluate(chain_batch(), num_microbatches=True), r"\(num_microbatches=True\)"),
        (lambda p: p.step(chain_batch(), outputs=5), r"outputs is a function .* \(outputs=5\)"),
        (lambda p: p.evaluate(chain_batch(), outputs=5), r"outputs is a function .* \(outputs=5\)"),
        (
            lambda p: p.step(without("targets", microbatch=2)),
            r"Objective.count reads 'targets' .* microbatch 2 does not have it \(it is {'inputs': \[1, 1\]}\); add it",
        ),
        (
            lambda p: p.step(without("inputs")),
            r"the first stage reads 'inputs' from each microbatch \(it holds targets\)",
        ),
        (
            lambda p: p.step(without("inputs", microbatch=1)),
            r"reads 'inputs' from each microbatch \(it holds targets\)",
        ),
        (
            lambda p: p.step({**chain_batch(), "x": torch.zeros(4, device="meta")}),
            "'x' of the batch is on the meta device",
        ),
        (
            lambda p: p.step({**chain_batch(), 3: torch.zeros(4)}),
            r"tensors of a batch go by names \(the batch has the key 3\); use text",
        ),
        (lambda p: p.evaluate([{**chain_batch(), None: torch.zeros(4)}] * 4), "microbatch 0 has the key None"),
        (lambda p: p.step([{**chain_batch(), "x": SPARSE}] * 4), "'x' of microbatch 0 is torch.sparse_coo"),
        (
            lambda p: p.step({**chain_batch(), "x": torch.zeros(4, requires_grad=True) * 2}),
            "a batch is data, .*'x' of the batch requires one.*; detach it",
        ),
    ],
)
def test_what_a_step_cannot_use_is_refused_before_it_begins(call: Any, wanted: str) -> None:
    with made(chain_model(), schedule="looped-bfs") as pipeline:
        with pytest.raises((ConfigError, ModelError), match=wanted):
            call(pipeline)
        assert pipeline.step(chain_batch()) == 270.0


def test_a_key_error_of_the_users_own_stays_one() -> None:
    objective = Objective(loss_sum=SQUARED_ERROR.loss_sum, count=lambda _: {}["inputs"])
    with made(chain_model(), objective=objective) as pipeline, pytest.raises(KeyError, match="inputs"):
        pipeline.step(chain_batch())


def test_outputs_after_a_failure_are_refused_at_once() -> None:
    pipeline = made(chain_model(), objective=Objective(loss_sum=failing, count=SQUARED_ERROR.count))
    with pytest.raises(RankFailed, match="ZeroDivisionError"):
        pipeline.step(chain_batch())
    with pytest.raises(ConfigError, match="this pipeline has failed in an earlier step and cannot go on"):
        pipeline.outputs()


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


def test_a_loss_that_asks_its_own_pipeline_is_told_that_a_step_is_under_way() -> None:
    said: list[str] = []

    def asking(output: torch.Tensor, microbatch: Any) -> torch.Tensor:
        try:
            pipeline.evaluate(chain_batch())
        except ConfigError as error:
            said.append(str(error))
        return SQUARED_ERROR.loss_sum(output, microbatch)

    with made(chain_model(), objective=Objective(asking, SQUARED_ERROR.count)) as pipeline:
        assert pipeline.step(chain_batch()) == 270.0
        assert set(said) == {"this pipeline is in the middle of a step or an evaluation; call it when that is over"}
        assert pipeline.evaluate(chain_batch()) == 270.0, "nothing has failed"


def test_a_step_in_inference_mode_is_refused_as_it_would_train_nothing() -> None:
    with made(chain_model()) as pipeline:
        with torch.inference_mode(), pytest.raises(ConfigError, match=r"torch\.inference_mode\(\) has none"):
            pipeline.step(chain_batch())
        with torch.no_grad():
            assert pipeline.step(chain_batch()) == 270.0
        assert pipeline.gradients()


def test_after_a_block_that_raised_nothing_trains_without_the_pipelines_hooks() -> None:
    with pytest.raises(ZeroDivisionError), made(chain_model()) as pipeline:
        raise ZeroDivisionError
    with pytest.raises(ConfigError, match="this pipeline is closed"):
        pipeline.step(chain_batch())
