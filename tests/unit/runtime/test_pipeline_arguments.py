"""What `fullbore.Pipeline` takes for its arguments, and how it refuses anything else: by name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fullbore.errors import ConfigError, ModelError, ScheduleError
from fullbore.models.layered import Objective
from fullbore.runtime.device import CpuDevice
from fullbore.schedules.registry import get
from tests.support.ranks import SQUARED_ERROR, chain_batch, chain_model
from tests.unit.runtime.one_rank import made


def test_chunks_and_options_go_to_the_schedule() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(1, 1) for _ in range(3)))
    options = {"group_size": 2}
    with made(model, schedule="interleaved-1f1b", num_chunks=3, schedule_options=options) as pipeline:
        expected = get("interleaved-1f1b").build(1, num_microbatches=4, num_chunks=3, options=options)
        assert pipeline.schedule == expected


@pytest.mark.parametrize("more", [{"num_chunks": 1}, {"schedule_options": {"extra_warmup": 1}}])
def test_beside_a_whole_schedule_they_are_refused(more: dict[str, object]) -> None:
    schedule = get("1f1b").build(1, num_microbatches=4)
    with pytest.raises(ScheduleError, match=r"already says its stages per rank .* leave out both, or give a name"):
        made(chain_model(), schedule=schedule, **more)


@pytest.mark.parametrize(
    "cut", ["parameters", "profile", 2, [1.0, 1.0], [True, True], ["1", "1"], [], np.ones(2), np.ones((2, 2), int)]
)
def test_a_cut_is_equal_or_whole_numbers(cut: Any) -> None:
    with pytest.raises(ConfigError, match=r'layers_per_stage is "equal" or a whole number of layers for each stage'):
        made(chain_model(), layers_per_stage=cut)


def test_counts_of_numpy_are_a_cut() -> None:
    """As a search gives them; an array of several is neither true nor false."""
    cut: Any = np.array([1, 1])
    with made(chain_model(), schedule="looped-bfs", layers_per_stage=cut) as pipeline:
        assert pipeline.layers_per_stage == (1, 1)


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


def test_the_weights_of_a_half_precision_model_are_no_torch_optimizers() -> None:
    """Also those that are float32 themselves, as adapters are: the loss is scaled, so nothing is in ``.grad``."""
    model = chain_model()
    model[0].half().requires_grad_(False)
    with made(model) as pipeline, pytest.raises(ConfigError, match="MasterOptimizer"):
        pipeline.parameters()
