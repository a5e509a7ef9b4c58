"""Profiling finds sizes exactly, and leaves the model and the random state as they were."""

from __future__ import annotations

import copy
import time

import pytest
import torch
from torch import nn

from fullbore.errors import ModelError
from fullbore.models.hugging_face.model import HuggingFaceModel
from fullbore.models.profile import profile
from fullbore.models.sequential import sequential_model
from tests.unit.models.chained import CPU
from tests.unit.models.families import FAMILIES, microbatch


def test_layers_of_a_language_model() -> None:
    model = HuggingFaceModel.from_config(FAMILIES["qwen2-tied"])
    costs = profile(model, microbatch(), device=CPU, repeats=2)
    assert tuple(cost.name for cost in costs) == model.layer_names
    embed, *blocks, head = costs
    assert embed.parameters == 97 * 32
    assert head.parameters == 97 * 32 + 32
    assert embed.backward_input_ns == 0 < embed.backward_weight_ns
    assert all(cost.forward_ns > 0 and cost.backward_input_ns > 0 for cost in blocks)
    assert [cost.output_bytes for cost in costs] == [2 * 10 * 32 * 4] * 5 + [0]
    assert len({cost.activation_bytes for cost in blocks}) == 1
    assert head.activation_bytes >= 2 * 10 * 97 * 4


def test_bytes_of_adamw_by_dtype() -> None:
    per_weight = {torch.float32: (4, 8), torch.bfloat16: (2, 12), torch.float64: (8, 16)}
    for dtype, (size, optimizer) in per_weight.items():
        cost = profile(
            HuggingFaceModel.from_config(FAMILIES["llama"], dtype=dtype), microbatch(), device=CPU, repeats=1
        )[1]
        assert cost.parameter_bytes == size * cost.parameters
        assert cost.optimizer_bytes == optimizer * cost.parameters


def test_kept_activations_are_counted_once_without_weights_and_output() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 2))
    costs = profile(sequential_model(module), {"inputs": torch.ones(3, 4)}, device=CPU, repeats=1)
    linear, relu, wide, tanh, _ = costs
    assert linear.activation_bytes == 3 * 4 * 4  # its input
    assert relu.activation_bytes == 0  # keeps only its output
    assert wide.activation_bytes == 3 * 8 * 4
    assert tanh.activation_bytes == 0


def test_a_users_module_is_left_as_it_was() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(6, 6))
    module.append(nn.Dropout().eval())
    before = copy.deepcopy(module)
    module[4].weight.grad = torch.full((6, 6), 3.0)
    batch = {"inputs": torch.randn(8, 6)}
    inputs = batch["inputs"].clone()
    state = torch.get_rng_state()
    profile(sequential_model(module), batch, device=CPU, repeats=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(batch["inputs"], inputs)
    expected = before.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in module.state_dict().items())
    assert [m.training for m in module.modules()] == [m.training for m in before.modules()]
    assert {name for name, p in module.named_parameters() if p.grad is not None} == {"4.weight"}
    assert torch.equal(module[4].weight.grad, torch.full((6, 6), 3.0))
    assert not any(m._forward_hooks or m._backward_hooks for m in module.modules())


def test_building_for_a_profile_leaves_the_random_state() -> None:
    torch.manual_seed(9)
    state = torch.get_rng_state()
    profile(HuggingFaceModel.from_config(FAMILIES["llama"]), microbatch(), device=CPU, repeats=1)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_budget_ends_it_early_and_dropping_layers_gives_the_same_sizes() -> None:
    model = HuggingFaceModel.from_config(FAMILIES["llama"])
    start = time.perf_counter()
    stopped = profile(model, microbatch(), device=CPU, repeats=10**6, budget_s=0.0)
    assert time.perf_counter() - start < 5
    dropped = profile(model, microbatch(), device=CPU, repeats=1, held_bytes=0)
    sizes = [
        [(c.name, c.parameters, c.activation_bytes, c.output_bytes) for c in costs] for costs in (stopped, dropped)
    ]
    assert sizes[0] == sizes[1]


def test_frozen_layers_cost_no_backward_for_weights_and_no_optimizer() -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    module[0].requires_grad_(False)
    costs = profile(sequential_model(module), {"inputs": torch.ones(2, 6)}, device=CPU, repeats=1)
    assert (costs[0].backward_input_ns, costs[0].backward_weight_ns, costs[0].optimizer_bytes) == (0, 0, 0)
    assert costs[0].parameters == 42


class Clock:
    """Each look at it takes ``growth`` times as long as the one before: the later a layer, the slower it seems. The CPU
    has run this thread for ``share`` of the time."""

    def __init__(self, growth: float, *, share: float = 1.0) -> None:
        self._growth, self._now, self._tick, self._share = growth, 0.0, 1000.0, share

    def perf_counter(self) -> float:
        return 0.0

    def perf_counter_ns(self) -> int:
        self._now, self._tick = self._now + self._tick, self._tick * self._growth
        return int(self._now)

    def thread_time_ns(self) -> int:
        return int(self._now * self._share)


@pytest.mark.parametrize(("growth", "blocks"), [(1.1, 2), (1.0, 1)])
def test_equal_blocks_are_measured_as_one_however_long_each_seems_to_take(
    growth: float, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the one round that a busy machine leaves time for. Of equal sizes, but not the same block: Tanh and Sigmoid,
    which are told apart where one takes longer."""
    monkeypatch.setattr("fullbore.models.profile.time", Clock(growth))
    activations = [nn.Tanh(), nn.Sigmoid(), nn.Tanh(), nn.Sigmoid(), nn.Tanh()]
    module = nn.Sequential(nn.Linear(4, 4), *activations, nn.Linear(4, 4))
    costs = profile(sequential_model(module), {"inputs": torch.ones(3, 4)}, device=CPU, repeats=1)[1:-1]
    times = [(cost.forward_ns, cost.backward_input_ns, cost.backward_weight_ns) for cost in costs]
    assert len({(c.parameters, c.activation_bytes, c.output_bytes) for c in costs}) == 1
    assert len(set(times[::2])) == len(set(times[1::2])) == 1
    assert len(set(times)) == blocks


def test_equal_blocks_of_a_language_model_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullbore.models.profile.time", Clock(1.1))
    costs = profile(FAMILIES["llama"], microbatch(), device=CPU, repeats=1)
    assert len({cost.forward_ns for cost in costs[1:-1]}) == 1
    assert costs[0].forward_ns < costs[1].forward_ns < costs[-1].forward_ns


@pytest.mark.parametrize(
    ("growth", "share", "told"),
    [(1.0, 1.0, 0), (1.0, 0.4, 1), (1.05, 1.0, 1)],
    ids=["quiet", "load all the time", "slower and slower"],
)
def test_a_measurement_that_was_disturbed_is_told(
    growth: float, share: float, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fullbore.models.profile.time", Clock(growth, share=share))
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    said: list[str] = []
    profile(sequential_model(module), {"inputs": torch.ones(3, 4)}, device=CPU, repeats=5, tell=said.append)
    assert len(said) == told
    for line in said:
        assert line.startswith("warning: the usual round of some layers took longer")


def test_it_takes_what_a_pipeline_takes() -> None:
    """A module or a configuration as its author has it, and says so where it can make nothing of one."""
    sequential = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    assert [cost.name for cost in profile(sequential, {"inputs": torch.ones(2, 6)}, device=CPU, repeats=1)] == [
        "0",
        "1",
    ]
    costs = profile(FAMILIES["llama"], microbatch(), device=CPU, repeats=1)
    assert [costs[0].name, costs[-1].name] == ["embed", "head"]
    with pytest.raises(ModelError, match="cannot be split without knowing what follows what"):
        profile(nn.Linear(6, 6), {"inputs": torch.ones(2, 6)}, device=CPU, repeats=1)
