"""What a step or an evaluation of a pipeline refuses: its batch, its loss, and the place it is called from."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fullbore.errors import ConfigError, ModelError
from fullbore.models.layered import Objective
from tests.support.ranks import SQUARED_ERROR, chain_batch, chain_model
from tests.unit.runtime.one_rank import made


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


def test_a_vector_for_a_loss_is_refused_in_an_evaluation_too() -> None:
    objective = Objective(loss_sum=lambda output, _: output[:, 0], count=SQUARED_ERROR.count)
    pipeline = made(chain_model(), objective=objective, num_microbatches=2)
    with pytest.raises(ModelError, match="gives one number"):
        pipeline.evaluate(chain_batch())


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
