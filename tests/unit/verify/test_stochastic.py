"""Random numbers are keyed, absent, or named; precision that cannot be compared is replaced and said."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fullbore.config.run import ModelConfig, RunConfig
from fullbore.errors import ModelError
from fullbore.models.load import layered
from fullbore.models.next_token import next_token_objective
from fullbore.verify.stochastic import Randomness, comparable_config, not_comparable, probe_randomness
from tests.support import stochastic
from tests.support.staged import CPU


def probed(module: nn.Module) -> Randomness:
    tokens = torch.randint(0, 256, (2, 17), generator=torch.Generator().manual_seed(1))
    model = layered(module)
    built = model.build_stage(0, len(model.layer_names), seed=0, device=CPU)
    return probe_randomness(
        model,
        {"inputs": tokens[:, :-1], "labels": tokens[:, 1:]},
        objective=next_token_objective(),
        values={**built.weights, **built.buffers},
        device=CPU,
    )


def without_dropout() -> nn.Module:
    module = stochastic.functional_dropout()
    return module.eval()


@pytest.mark.parametrize(
    ("make", "keyed", "unkeyed"),
    [
        (stochastic.functional_dropout, True, None),
        (without_dropout, False, None),
        (stochastic.own_generator, False, "random numbers that are not drawn from torch's own generators"),
        (stochastic.between_layers, False, "random numbers drawn outside of the layers (before 'block')"),
    ],
)
def test_what_a_model_draws_is_found(make: object, keyed: bool, unkeyed: str | None) -> None:
    module = make()  # type: ignore[operator]
    before, state = {n: w.detach().clone() for n, w in module.named_parameters()}, torch.get_rng_state()
    assert probed(module) == Randomness(keyed=keyed, unkeyed=unkeyed)
    assert all(torch.equal(weight, before[name]) for name, weight in module.named_parameters())
    assert all("forward" not in vars(part) and not part._forward_hooks for part in module.modules())
    if unkeyed is None:
        assert torch.equal(torch.get_rng_state(), state)


def test_a_model_that_is_random_in_evaluation_mode_is_refused() -> None:
    with pytest.raises(ModelError, match=r"in evaluation mode as well cannot be compared .random numbers that are not"):
        probed(stochastic.always_random())


@pytest.mark.parametrize(
    ("dtype", "compared"), [("bfloat16", "float32"), ("float16", "float32"), ("float64", "float64")]
)
def test_reduced_precision_is_verified_in_float32(dtype: str, compared: str) -> None:
    config, notes = comparable_config(RunConfig(model=ModelConfig(dtype=dtype)))  # type: ignore[arg-type]
    assert config.model.dtype == compared
    assert [note.what for note in notes] == ([dtype] if dtype != compared else [])


def test_batch_statistics_are_said() -> None:
    (note,) = not_comparable(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2), nn.BatchNorm2d(2)))
    assert note.what == "BatchNorm1d, BatchNorm2d"
    assert "compared against one process running the same microbatches" in note.why
    assert not_comparable(nn.Sequential(nn.LayerNorm(2), nn.Dropout(0.5))) == []
