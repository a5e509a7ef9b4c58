"""`fullbore.Pipeline` in one process: a pipeline of one rank, with several stages where the schedule has them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fullbore.errors import ConfigError, ScheduleError
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


@pytest.mark.parametrize("cut", ["parameters", "profile", 2, [1.0, 1.0], [True, True], ["1", "1"], []])
def test_a_cut_is_equal_or_whole_numbers(cut: Any) -> None:
    with pytest.raises(ConfigError, match=r'layers_per_stage is "equal" or a whole number of layers for each stage'):
        Pipeline(chain_model(), num_microbatches=4, layers_per_stage=cut, objective=SQUARED_ERROR, device=CpuDevice())
