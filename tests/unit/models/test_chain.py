"""Sequential modules and modules that name their own layers."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, weight_norm
from torch.nn.utils.prune import l1_unstructured

from fullbore.errors import ModelError
from fullbore.models.layered import Objective
from fullbore.models.protocol import protocol_model
from fullbore.models.sequential import sequential_model
from tests.unit.models.chained import CPU, assert_same, build, run, whole

OBJECTIVE = Objective(
    loss_sum=lambda output, batch: (output - batch["targets"]).square().sum(),
    count=lambda batch: batch["targets"].numel(),
)
BATCH = {"inputs": torch.linspace(-1, 1, 24).reshape(4, 6), "targets": torch.linspace(2, 3, 24).reshape(4, 6)}


def overwriting() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 6), nn.Linear(6, 6))


@pytest.mark.parametrize("cuts", [[0, 4], [0, 1, 4], [0, 2, 4], [0, 3, 4], [0, 1, 2, 3, 4]])
def test_every_cut_equals_the_unsplit_module_even_beside_an_in_place_layer(cuts: list[int]) -> None:
    module = overwriting()
    reference = whole(copy.deepcopy(module), lambda m, batch: m(batch["inputs"]), BATCH, objective=OBJECTIVE)
    assert_same(run(build(sequential_model(module), cuts), BATCH, objective=OBJECTIVE), reference)


def test_an_in_place_first_layer_leaves_the_microbatch_alone() -> None:
    batch = {key: tensor.clone() for key, tensor in BATCH.items()}
    stage = sequential_model(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 6))).build_stage(
        0, 1, seed=0, device=CPU
    )
    stage.module(None, batch)
    assert torch.equal(batch["inputs"], BATCH["inputs"])


def test_real_modules_are_taken_as_they_are() -> None:
    module = overwriting()
    stage = sequential_model(module).build_stage(2, 4, seed=0, device=CPU)
    assert stage.layer_modules == {"2": module[2], "3": module[3]}
    assert stage.weights["2.weight"] is module[2].weight
    assert list(stage.weights) == ["2.weight", "2.bias", "3.weight", "3.bias"]


def test_boundaries_of_changing_shapes() -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 5))
    batch = {"inputs": torch.zeros(2, 3, 8, 8)}
    model = sequential_model(module)
    assert [model.boundary(layer, batch).tensors[0].shape for layer in (1, 2, 3)] == [
        (2, 4, 6, 6),
        (2, 4, 6, 6),
        (2, 144),
    ]
    value = None
    for layer, stage in enumerate(build(model, [0, 1, 2, 3, 4]), start=1):
        value = stage.module(value, batch)
        if layer < 4:
            assert [tuple(tensor.shape) for tensor in value] == [
                spec.shape for spec in model.boundary(layer, batch).tensors
            ]
    assert set(model.build_stage(1, 2, seed=0, device=CPU).buffers) == {
        "1.running_mean", "1.running_var", "1.num_batches_tracked"
    }  # fmt: skip


def test_a_boundary_pass_changes_nothing() -> None:
    module = nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 6))
    before = copy.deepcopy(module.state_dict())
    state = torch.get_rng_state()
    sequential_model(module).boundary(1, BATCH)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_gradient_comes_back_after_an_evaluation_in_inference_mode() -> None:
    """What crosses is found once for each shape: in a mode without gradients too, and then training has them."""
    model = sequential_model(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)))
    with torch.inference_mode():
        (spec,) = model.boundary(1, BATCH).tensors
    assert spec.gradient
    assert model.boundary(1, BATCH).gradients == (spec,)


def test_a_layer_that_does_not_fit_is_named() -> None:
    model = sequential_model(nn.Sequential(nn.Linear(6, 6), nn.Linear(5, 5)))
    with pytest.raises(ModelError, match=r"layer '1' of Sequential cannot take .*\[4, 6\] torch\.float32"):
        model.boundary(1, BATCH)


class Particular(nn.Module):
    """Raises something of its own."""

    def forward(self, value: Tensor) -> Tensor:
        raise ValueError(f"odd width {value.shape[-1]}")


def test_whatever_a_layer_raises_on_what_it_is_given_names_the_layer() -> None:
    model = sequential_model(nn.Sequential(nn.Linear(6, 6), Particular()))
    with pytest.raises(ModelError, match=r"layer '1' of Sequential cannot take .*odd width 6"):
        model.boundary(1, BATCH)


def test_a_layer_that_cannot_take_a_tuple_is_named() -> None:
    model = sequential_model(nn.Sequential(nn.LSTM(6, 6), nn.Linear(6, 6)))
    with pytest.raises(ModelError, match="'1' of Sequential cannot take what the layer before it gives"):
        model.boundary(1, {"inputs": torch.zeros(2, 4, 6)})


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
@pytest.mark.parametrize("how", [weight_norm, partial(l1_unstructured, name="weight", amount=0.5)])
def test_a_module_that_holds_a_computed_weight_is_named_with_what_to_do(how: Any) -> None:
    model = sequential_model(nn.Sequential(nn.Linear(6, 6), nn.Sequential(nn.Tanh(), how(nn.Linear(6, 6)))))
    wanted = r"1\.1 of Sequential holds 'weight' computed from weights.*parametrizations.weight_norm, and end pruning"
    for call in (lambda: model.boundary(1, BATCH), model.whole):
        with pytest.raises(ModelError, match=wanted):
            call()


def test_weight_norm_as_a_parametrization_is_copied() -> None:
    model = sequential_model(nn.Sequential(nn.Linear(6, 6), parametrizations.weight_norm(nn.Linear(6, 6))))
    assert model.boundary(1, BATCH).tensors[0].shape == tuple(BATCH["inputs"].shape)


class Residual(nn.Module):
    """Names layers that are not its children."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.scale = nn.LayerNorm(6)

    def pipeline_layers(self) -> list[tuple[str, nn.Module]]:
        return [
            ("trunk.0", self.trunk[0]),
            ("middle", nn.Sequential(self.trunk[1], nn.Tanh(), self.trunk[2])),
            ("norm", self.scale),
        ]

    def forward(self, value: Tensor) -> Tensor:
        for _, layer in self.pipeline_layers():
            value = layer(value)
        return value


@pytest.mark.parametrize("cuts", [[0, 3], [0, 1, 3], [0, 1, 2, 3]])
def test_weights_keep_the_names_they_have_in_the_users_module(cuts: list[int]) -> None:
    module = Residual()
    reference = whole(copy.deepcopy(module), lambda m, batch: m(batch["inputs"]), BATCH, objective=OBJECTIVE)
    stages = build(protocol_model(module), cuts)
    assert [name for stage in stages for name in stage.weights] == [name for name, _ in module.named_parameters()]
    assert_same(run(stages, BATCH, objective=OBJECTIVE), reference)


def test_the_whole_model_is_the_users_own_forward() -> None:
    with torch.device("meta"):
        model = protocol_model(Residual())
    whole_model = model.whole()
    stages = build(model, [0, 2, 3])
    weights = {name: weight for stage in stages for name, weight in stage.weights.items()}
    whole_model.module.load_state_dict(weights)
    result = run(stages, BATCH, objective=OBJECTIVE)
    assert_same(result, whole(whole_model.module, lambda _, batch: whole_model.call(batch), BATCH, objective=OBJECTIVE))


def test_the_whole_model_keeps_its_ties() -> None:
    """`nn.Module.to_empty` unties: a reference without the tie would have weights of its own that nobody loads."""
    with torch.device("meta"):
        layer = nn.Linear(4, 4)
        model = sequential_model(nn.Sequential(layer, nn.Tanh(), layer))
    assert [name for name, _ in model.whole().module.named_parameters()] == ["0.weight", "0.bias"]


def test_a_weight_outside_of_the_layers_is_refused() -> None:
    module = Residual()
    module.forgotten = nn.Linear(2, 2)
    with pytest.raises(ModelError, match=r"none of them holds forgotten\.weight of Residual"):
        protocol_model(module)


def test_repeated_names_are_refused() -> None:
    module = Residual()
    module.pipeline_layers = lambda: [("a", module.trunk), ("a", module.scale)]  # type: ignore[method-assign]
    with pytest.raises(ModelError, match=r"layer names are unique .Residual has 'a' 2 times."):
        protocol_model(module)


def test_an_empty_sequential_is_refused() -> None:
    with pytest.raises(ModelError, match=r"at least one layer .Sequential has none."):
        sequential_model(nn.Sequential())
