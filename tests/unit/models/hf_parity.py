"""A Hugging Face model in stages against the unsplit one, with the runtime's engines and the verifier's reference."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fullbore.config.run import OptimizerConfig
from fullbore.models.hugging_face.model import HuggingFaceModel
from fullbore.models.layered import Microbatch
from fullbore.verify.reference import copies, run_reference
from tests.support.staged import CPU, Staged, sliced

SGD = OptimizerConfig(name="sgd", lr=0.1, weight_decay=0.0, clip_norm=1e9)


def assert_parity(
    model: HuggingFaceModel,
    cuts: Sequence[int],
    batch: Microbatch,
    *,
    number: int = 1,
    recompute: Sequence[str] = (),
) -> Staged:
    """Loss and every gradient, in float64 within 1e-9 of the largest value; those that are rounding noise (a bias of
    keys) as noise."""
    staged = Staged(model, cuts, objective=model.objective, recompute=recompute)
    with torch.no_grad():
        for weight in {id(w): w for stage in staged.stages for w in stage.weights.values()}.values():
            weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(3), dtype=weight.dtype)
    initial = {**copies(staged.weights), **copies(staged.buffers)}
    microbatches = sliced(batch, number)
    expected = run_reference(
        model, [microbatches], objective=model.objective, initial=initial, optimizer=SGD, device=CPU
    )
    loss = staged.step([microbatches])
    assert abs(loss - expected.losses[0]) <= 1e-12 * abs(expected.losses[0])
    found = gradients_of(staged)
    assert found.keys() == expected.gradients.keys()
    noise = 1e-15 * max(float(gradient.abs().max()) for gradient in expected.gradients.values())
    for name, gradient in expected.gradients.items():
        largest = float(gradient.abs().max())
        assert largest > 0, f"{name} has a zero gradient: nothing is compared"
        assert float((found[name] - gradient).abs().max()) <= max(1e-9 * largest, noise), name
    return staged


def gradients_of(staged: Staged) -> dict[str, torch.Tensor]:
    """By name; the sum over stages where a weight is tied."""
    total: dict[str, torch.Tensor] = {}
    for stage in staged.stages:
        for name, weight in stage.weights.items():
            if weight.grad is not None:
                total[name] = total[name] + weight.grad if name in total else weight.grad
    return total
