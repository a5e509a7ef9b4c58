"""BatchNorm: statistics per microbatch, running statistics as in one process, counted once."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from fullbore.errors import ModelError
from fullbore.models.layered import Microbatch
from fullbore.models.profile import profile
from fullbore.models.sequential import sequential_model
from tests.support.staged import CPU, SQUARED_ERROR, Staged, sliced

NAMES = ("0", "1", "2", "3")


def mlp(norm: type[nn.Module]) -> nn.Sequential:
    """Four layers, the normalisation inside of layer 1."""
    torch.manual_seed(4)
    layers: list[nn.Module] = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)]
    layers[1] = nn.Sequential(nn.Linear(8, 8), norm(8), nn.Tanh())
    return nn.Sequential(*layers).double()


def batch() -> Microbatch:
    generator = torch.Generator().manual_seed(5)
    return {name: 1 + torch.randn(8, 8, generator=generator).double() for name in ("inputs", "targets")}


def one_process(module: nn.Module, microbatches: Sequence[Microbatch]) -> tuple[float, dict[str, Tensor]]:
    """The same microbatches in the same order, twice."""
    total = 0.0
    for _ in range(2):
        for one in microbatches:
            loss = ((module(one["inputs"]) - one["targets"]) ** 2).sum() / 64
            loss.backward()
            total += float(loss.detach())
    return total, {name: weight.grad for name, weight in module.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("recompute", [(), NAMES], ids=["kept", "recomputed"])
@pytest.mark.parametrize("number", [1, 4])
@pytest.mark.parametrize("cuts", [[0, 4], [0, 2, 4], [0, 1, 2, 4]])
@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.LayerNorm])
def test_loss_gradients_and_running_statistics_are_those_of_one_process(
    norm: type[nn.Module], cuts: Sequence[int], number: int, recompute: Sequence[str]
) -> None:
    """torchgpipe #9, #14. With recomputation each microbatch still counts once in the running statistics."""
    module = mlp(norm)
    alone = copy.deepcopy(module)
    loss, gradients = one_process(alone, sliced(batch(), number))
    staged = Staged(sequential_model(module), cuts, recompute=recompute)
    assert sum(staged.step([sliced(batch(), number)]) for _ in range(2)) == pytest.approx(loss, rel=1e-12)
    for name, gradient in staged.store.gradients().items():
        torch.testing.assert_close(gradient, gradients[name], rtol=1e-10, atol=1e-13)
    buffers = dict(alone.named_buffers())
    assert staged.buffers.keys() == buffers.keys()
    assert len(buffers) == (3 if norm is nn.BatchNorm1d else 0)
    for name, buffer in buffers.items():
        torch.testing.assert_close(staged.buffers[name], buffer, rtol=1e-12, atol=0)


def test_more_microbatches_change_the_loss_of_a_batch_norm_and_not_of_a_layer_norm() -> None:
    """By design, and so the undivided batch is no reference."""
    for norm, equal in ((nn.BatchNorm1d, False), (nn.LayerNorm, True)):
        losses = [Staged(sequential_model(mlp(norm)), [0, 2, 4]).step([sliced(batch(), m)]) for m in (1, 4)]
        assert (abs(losses[0] - losses[1]) < 1e-12) is equal


def test_evaluation_uses_the_running_statistics_and_leaves_them() -> None:
    module = mlp(nn.BatchNorm1d)
    staged = Staged(sequential_model(module), [0, 2, 4])
    staged.step([sliced(batch(), 4)])
    before = {name: buffer.clone() for name, buffer in staged.buffers.items()}
    assert staged.evaluate(sliced(batch(), 1)) == pytest.approx(staged.evaluate(sliced(batch(), 4)), rel=1e-12)
    assert all(torch.equal(buffer, before[name]) for name, buffer in staged.buffers.items())


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.InstanceNorm1d])
def test_a_recomputed_normalisation_counts_once_with_either_average(kind: type[nn.Module]) -> None:
    """With momentum None the average weighs by the number of batches seen, which must not be doubled."""
    torch.manual_seed(1)
    norm = kind(4, momentum=None if kind is nn.BatchNorm1d else 0.1, track_running_stats=True)  # type: ignore[call-arg]
    module = nn.Sequential(nn.Sequential(nn.Conv1d(4, 4, 1), norm), nn.Flatten()).double()
    given = [{"inputs": torch.randn(4, 4, 3).double(), "targets": torch.zeros(4, 12).double()} for _ in range(3)]
    staged = [Staged(sequential_model(copy.deepcopy(module)), [0, 2], recompute=names) for names in ((), ("0",))]
    for one in staged:
        one.step([given])
    plain, recomputed = (one.buffers for one in staged)
    assert all(torch.equal(recomputed[name], buffer) for name, buffer in plain.items())


def test_a_cumulative_average_is_that_of_one_process() -> None:
    """With momentum None the forward reads how many batches there have been, of which a pass without values knows
    nothing."""
    module = mlp(nn.BatchNorm1d)
    module[1][1].momentum = None  # type: ignore[index, union-attr]
    alone = copy.deepcopy(module)
    one_process(alone, sliced(batch(), 2))
    staged = Staged(sequential_model(module), [0, 1, 2, 4])
    for _ in range(2):
        staged.step([sliced(batch(), 2)])
    for name, buffer in alone.named_buffers():
        torch.testing.assert_close(staged.buffers[name], buffer, rtol=1e-12, atol=0)
    assert int(staged.buffers["1.1.num_batches_tracked"]) == 4


class Counting(nn.Module):
    """Keeps a number of its own, as a codebook or spectral norm does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, value: Tensor) -> Tensor:
        self.seen += 1  # type: ignore[operator]
        return self.linear(value)


def test_another_state_that_recomputation_would_change_again_is_refused_by_name() -> None:
    module = nn.Sequential(nn.Linear(8, 8), Counting(), nn.Linear(8, 8)).double()
    staged = Staged(sequential_model(module), [0, 1, 3], recompute=("1",))
    with pytest.raises(ModelError, match=r"layer '1' changes its buffer 'seen' .Counting. when it runs, and recomp"):
        staged.step([sliced(batch(), 2)])
    for undo in reversed(staged.undo):
        undo()
    Staged(sequential_model(module), [0, 1, 3]).step([sliced(batch(), 2)])


def test_a_profile_changes_no_weight_buffer_mode_or_random_state() -> None:
    """Neither does it leave a gradient or a hook behind, at any layer, beside one that overwrites its input."""
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 8))
    module[3].eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    modes, state = [part.training for part in module.modules()], torch.get_rng_state()
    given = {"inputs": torch.randn(4, 8, generator=torch.Generator().manual_seed(1)), "targets": torch.zeros(4, 8)}
    costs = profile(sequential_model(module), given, device=CPU, repeats=2, objective=SQUARED_ERROR)
    assert [cost.name for cost in costs] == ["0", "1", "2", "3", "4"]
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert [part.training for part in module.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(weight.grad is None and not weight._backward_hooks for weight in module.parameters())
    assert all("forward" not in vars(part) for part in module.modules())
