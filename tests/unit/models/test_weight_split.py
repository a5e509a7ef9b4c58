"""A backward in two halves: the bits of the whole one, for every registered operation and for models of many kinds."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm
from transformers.models.mt5.modeling_mt5 import MT5LayerNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
from transformers.pytorch_utils import Conv1D

from fullbore.errors import ModelError
from fullbore.models.hugging_face.model import HuggingFaceModel
from fullbore.models.split_backward import norm_splits
from fullbore.models.split_backward.deferral import Deferral
from fullbore.models.split_backward.weight_queue import WeightQueue
from fullbore.models.split_backward.weight_registry import apply_weight_splits, register_weight_split, split_of
from fullbore.models.split_backward.weight_split import WeightSplit
from tests.support.staged import Staged
from tests.unit.models.families import FAMILIES, microbatch
from tests.unit.models.scale import Scale

MODULES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(6, 5),
    "linear without bias": lambda: nn.Linear(6, 5, bias=False),
    "gpt2's linear": lambda: Conv1D(5, 6),
    "layer norm": lambda: nn.LayerNorm(6),
    "layer norm without bias": lambda: nn.LayerNorm(6, bias=False),
    "layer norm over two": lambda: nn.LayerNorm((3, 6)),
    "torch's rms norm": lambda: nn.RMSNorm(6),
    "llama's rms norm": lambda: Qwen2RMSNorm(6),
    "gpt-oss's rms norm": lambda: GptOssRMSNorm(6),
    "t5's rms norm": lambda: MT5LayerNorm(6),
    "gemma's rms norm": lambda: GemmaRMSNorm(6),
}


@pytest.fixture(autouse=True)
def _small_norms_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the norms of these tests were large."""
    monkeypatch.setattr(norm_splits, "SMALLEST_NORM", 1)


def drawn(module: nn.Module, *, dtype: torch.dtype) -> nn.Module:
    """Weights unlike those of any initialisation: all ones would hide a forgotten factor."""
    generator = torch.Generator().manual_seed(5)
    for weight in module.parameters():
        weight.data = torch.randn(weight.shape, generator=generator).to(dtype)
    return module


def gradients_of(module: nn.Module) -> list[Tensor | None]:
    """As they are now, whatever is added to them later."""
    return [None if weight.grad is None else weight.grad.clone() for weight in module.parameters()]


class Split:
    """A module with its backward split, and a copy with a whole one."""

    def __init__(self, module: nn.Module) -> None:
        self.reference, self.module = copy.deepcopy(module), module
        self.deferral = Deferral()
        self.deferral.splits = True
        self.undo, self.whole = apply_weight_splits(module, self.deferral)

    def run(self, x: Tensor, *, seed: int = 9, halves: bool = True) -> tuple[Tensor, Tensor]:
        """(gradient of x in the reference, and here), after forward and backward of both with a random gradient."""
        found = []
        for module in (self.reference, self.module):
            leaf = x.detach().clone() if x.is_contiguous() else x.detach()
            leaf.requires_grad_(x.is_floating_point())
            self.deferral.splits = halves
            output = module(leaf)
            gradient = torch.randn(output.shape, generator=torch.Generator().manual_seed(seed)).to(output.dtype)
            if module is self.module and halves and output.requires_grad:
                before = gradients_of(module)
                self.deferral.queue = queue = WeightQueue()
                output.backward(gradient)
                self.deferral.queue = None
                for (name, now), then in zip(module.named_parameters(), before, strict=True):
                    unchanged = now.grad is None if then is None else torch.equal(now.grad, then)
                    assert unchanged, f"nothing is added to {name} before W"
                queue.run()
                assert len(queue) == 0
            else:
                output.backward(gradient)
            found.append((output.detach(), leaf.grad))
        (expected, first), (output, second) = found
        assert output.dtype == expected.dtype
        assert torch.equal(output, expected)
        return first, second

    def assert_same_weights(self) -> None:
        for (name, expected), weight in zip(self.reference.named_parameters(), self.module.parameters(), strict=True):
            assert (expected.grad is None) == (weight.grad is None), name
            if expected.grad is not None:
                assert weight.grad is not None
                assert weight.grad.dtype == expected.grad.dtype
                assert weight.grad.stride() == expected.grad.stride()
                assert torch.equal(weight.grad, expected.grad), name
                assert expected.grad.abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", MODULES)
def test_both_halves_have_the_bits_of_one_backward(name: str, dtype: torch.dtype) -> None:
    """Twice, so that the second adds to the first; then whole again, as a schedule may mix both."""
    split = Split(drawn(MODULES[name](), dtype=dtype))
    assert split.whole == {}
    for seed, halves in ((1, True), (2, True), (3, False)):
        x = torch.randn(4, 3, 6, generator=torch.Generator().manual_seed(seed)).to(dtype)
        expected, gradient = split.run(x, seed=seed, halves=halves)
        assert torch.equal(gradient, expected)
        split.assert_same_weights()


@pytest.mark.parametrize("shape", [(7, 6), (1, 1, 6), (2, 3, 4, 6), (0, 6), (6,)])
def test_a_linear_layer_takes_any_shape(shape: tuple[int, ...]) -> None:
    """With one dimension the backward stays whole."""
    split = Split(drawn(nn.Linear(6, 5), dtype=torch.float64))
    x = torch.randn(shape, dtype=torch.float64)
    expected, gradient = split.run(x, halves=len(shape) > 1)
    assert torch.equal(gradient, expected)
    if x.numel():
        split.assert_same_weights()


def test_a_linear_layer_takes_what_is_not_contiguous() -> None:
    split = Split(drawn(nn.Linear(6, 5), dtype=torch.float32))
    for x in (
        torch.randn(6, 3, 4).transpose(0, 2),
        torch.randn(3, 4, 12)[..., ::2],
        torch.randn(3, 1, 6).expand(3, 4, 6),
    ):
        expected, gradient = split.run(x)
        assert torch.equal(gradient, expected)
        split.assert_same_weights()


@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}, {"scale_grad_by_freq": True}])
def test_an_embedding_puts_its_rows_together_later(options: dict[str, Any]) -> None:
    split = Split(drawn(nn.Embedding(5, 4, **options), dtype=torch.float32))
    split.run(torch.tensor([[0, 2, 2], [4, 0, 1]]))
    split.assert_same_weights()


def test_an_embedding_that_renormalises_or_is_sparse_stays_whole() -> None:
    for options in ({"max_norm": 1.0}, {"sparse": True}):
        split = Split(drawn(nn.Embedding(5, 4, **options), dtype=torch.float32))
        split.run(torch.tensor([[0, 2, 2], [4, 0, 1]]), halves=False)
        made, expected = split.module.weight.grad, split.reference.weight.grad
        assert torch.equal(made.to_dense(), expected.to_dense())


@pytest.mark.parametrize("frozen", ["weight", "bias"])
@pytest.mark.parametrize("name", ["linear", "gpt2's linear", "layer norm"])
def test_one_of_two_weights_may_be_frozen(name: str, frozen: str) -> None:
    module = drawn(MODULES[name](), dtype=torch.float32)
    getattr(module, frozen).requires_grad_(False)
    split = Split(module)
    expected, gradient = split.run(torch.randn(4, 3, 6))
    assert torch.equal(gradient, expected)
    split.assert_same_weights()


@pytest.mark.parametrize("name", ["linear", "linear without bias", "gpt2's linear", "layer norm", "llama's rms norm"])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_autocast_casts_the_same(name: str, weights: torch.dtype) -> None:
    """Gradients have the dtype of the weights; a layer norm's backward stays whole."""
    split = Split(drawn(MODULES[name](), dtype=weights))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for module in (split.reference, split.module):
            leaf = torch.linspace(-1, 2, 72).view(4, 3, 6).to(weights).requires_grad_()
            output = module(leaf)
            gradient = torch.linspace(-2, 1, output.numel()).view(output.shape).to(output.dtype)
            split.deferral.queue = queue = WeightQueue()
            output.backward(gradient)
            split.deferral.queue = None
            queue.run()
            if module is split.reference:
                expected = (output, leaf.grad)
        assert (output.dtype, leaf.grad.dtype) == (expected[0].dtype, expected[1].dtype)
        assert torch.equal(output, expected[0])
        assert torch.equal(leaf.grad, expected[1])
    split.assert_same_weights()


def test_a_weight_used_several_times_is_summed_before_it_is_added() -> None:
    """As autograd does: in float32 (a + b) + c is not a + (b + c)."""

    class Thrice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 6, bias=False)
            self.second = nn.Linear(6, 6, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.first(torch.tanh(self.second(torch.tanh(self.first(x)))))

    split = Split(drawn(Thrice(), dtype=torch.float32))
    for seed in range(5):
        expected, gradient = split.run(torch.randn(4, 6), seed=seed)
        assert torch.equal(gradient, expected)
        split.assert_same_weights()


def test_hooks_of_weights_run() -> None:
    """After the gradient is there; a hook on the gradient itself is autograd's, and keeps the backward whole."""
    split = Split(drawn(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), dtype=torch.float32))
    seen: list[Tensor] = []
    for model in (split.reference, split.module):
        model[0].weight.register_post_accumulate_grad_hook(lambda weight: seen.append(weight.grad.clone()))
    split.run(torch.randn(4, 6))
    assert torch.equal(*seen)
    for model in (split.reference, split.module):
        model[1].weight.register_hook(lambda gradient: gradient * 2)
    split.deferral.begin()
    leaf = torch.ones(2, 6, requires_grad=True)
    split.deferral.queue = WeightQueue()
    split.module(leaf).sum().backward()
    split.deferral.queue = None
    assert torch.equal(split.module[1].bias.grad, split.reference[1].bias.grad + 2.0)


def test_the_next_layer_may_overwrite_the_output() -> None:
    for name in ("linear", "gpt2's linear", "layer norm"):
        split = Split(nn.Sequential(drawn(MODULES[name](), dtype=torch.float32), nn.ReLU(inplace=True)))
        expected, gradient = split.run(torch.randn(4, 3, 6))
        assert torch.equal(gradient, expected)
        split.assert_same_weights()


def test_without_gradients_or_copied_or_undone_it_is_the_plain_module() -> None:
    split = Split(drawn(nn.Linear(6, 5), dtype=torch.float32))
    x = torch.randn(4, 6)
    with torch.no_grad():
        assert torch.equal(split.module(x), split.reference(x))
    assert "forward" not in vars(copy.deepcopy(split.module)) or not hasattr(
        copy.deepcopy(split.module).forward, "split"
    )
    assert split.module(x).grad_fn.name() == "_OperationBackward"
    split.undo()
    assert vars(split.module).keys() == vars(split.reference).keys()
    assert split.module(x).grad_fn.name() == "AddmmBackward0"


class OwnForward(nn.Linear):
    """What it adds would be lost if it were taken for the linear layer that it inherits from."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 3.0


class OwnSplit(WeightSplit):
    """As in the module's docstring."""

    parameters = ("weight",)

    def run(self, x: Any, weights: Any, wanted: Any) -> Any:
        return x * weights[0], (x,)

    def weight_gradients(self, gradient: Any, kept: Any, wanted: Any) -> Any:
        return ((gradient * kept[0]).flatten(0, -2).sum(0),)


def test_a_class_without_an_entry_is_whole_and_named_and_one_may_be_registered() -> None:
    model = nn.Sequential(Scale(), nn.Linear(6, 6), OwnForward(6, 6), nn.Linear(6, 6).requires_grad_(False))
    split = Split(model)
    assert split.whole == {"Scale": 1, "OwnForward": 1}
    leaf = torch.randn(4, 6)
    split.deferral.queue = queue = WeightQueue()
    split.module(leaf).square().sum().backward()
    split.deferral.queue = None
    split.reference(leaf).square().sum().backward()
    assert model[0].weight.grad is not None
    assert model[1].weight.grad is None
    assert model[2].weight.grad is not None
    queue.run()
    split.assert_same_weights()

    register_weight_split(Scale, OwnSplit)
    again = Split(drawn(nn.Sequential(Scale(), Scale()), dtype=torch.float64))
    assert again.whole == {}
    again.run(torch.randn(4, 3, 6, dtype=torch.float64))
    again.assert_same_weights()


def test_what_cannot_be_registered_is_refused() -> None:
    with pytest.raises(ModelError, match=r"a subclass of fullbore\.WeightSplit \(given <class 'int'>\)"):
        register_weight_split(nn.Linear, int)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=r"a module class that has a forward \(given <class 'int'>\)"):
        register_weight_split(int, OwnSplit)  # type: ignore[type-var, arg-type]


def test_a_module_whose_forward_somebody_replaced_is_left_alone() -> None:
    module = nn.Linear(6, 6)
    module.forward = lambda x: x @ module.weight  # type: ignore[method-assign]
    assert split_of(module) is None
    assert split_of(nn.Linear(6, 6)) is not None


def test_a_norm_of_few_elements_makes_its_weight_gradient_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Putting it off takes longer than it does."""
    monkeypatch.undo()
    for module in (nn.LayerNorm(64), nn.RMSNorm(64), Qwen2RMSNorm(64), GemmaRMSNorm(64)):
        for rows, owed in ((16, 0), (1024, 1)):
            split = Split(module)
            split.deferral.queue = queue = WeightQueue()
            split.module(torch.randn(rows, 64, requires_grad=True)).square().sum().backward()
            assert len(queue) == owed
            split.undo()


CONFIGS = {**FAMILIES, "gpt2": GPT2Config(vocab_size=97, n_embd=32, n_layer=4, n_head=2, n_positions=64)}


def both(model: Any, cuts: list[int], rounds: Any, *, scale: float = 1.0, **more: Any) -> tuple[Staged, Staged]:
    """A step with whole backwards and the same with split ones."""
    staged = []
    for split in (False, True):
        one = Staged(model, cuts, objective=model.objective, split=split, scaled=scale != 1.0, **more)
        loss = one.step(rounds, loss_scale=scale)
        staged.append((one, loss))
    (whole, expected), (split_, loss) = staged
    assert loss == expected
    return whole, split_


def assert_same_gradients(whole: Staged, split: Staged) -> None:
    expected, made = whole.store.gradients(), split.store.gradients()
    assert made.keys() == expected.keys()
    assert made
    for name, gradient in expected.items():
        assert torch.equal(made[name], gradient), name


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("family", CONFIGS)
def test_models_have_the_same_bits(family: str, recompute: bool) -> None:
    model = HuggingFaceModel.from_config(CONFIGS[family])
    rounds = [[microbatch(length=10), microbatch(samples=1, length=7), microbatch(length=12, padded=True)]]
    blocks = tuple(model.layer_names[1:-1]) if recompute else ()
    whole, split = both(model, [0, 3, 6], rounds, recompute=blocks)
    assert_same_gradients(whole, split)
    left = {"cohere": ["CohereLayerNorm"], "mixtral": ["MixtralExperts", "MixtralTopKRouter"]}
    left |= {"gemma2": ["Gemma2TextScaledWordEmbedding"], "gemma3_text": ["Gemma3TextScaledWordEmbedding"]}
    assert sorted({name for one in split.whole for name in one}) == left.get(family, [])
    assert all(split.peak_held_bytes)
