"""Norms and clipping on one rank; over several ranks see tests/distributed."""

from __future__ import annotations

import math

import pytest
import torch

from fullbore.errors import ConfigError
from fullbore.ir.recipe import Layout
from fullbore.runtime.clipping import clip, clip_global_norm, global_norm, require_max_norm
from fullbore.runtime.device import CpuDevice
from fullbore.runtime.mesh import Mesh


@pytest.fixture
def alone() -> Mesh:
    return Mesh(Layout(pipeline=1), device=CpuDevice(), timeout_s=1.0)


@pytest.mark.parametrize(("norm_type", "expected"), [(2.0, 5.0), (math.inf, 4.0)])
def test_norms(norm_type: float, expected: float, alone: Mesh) -> None:
    assert global_norm([torch.tensor([3.0]), torch.tensor([-4.0])], mesh=alone, norm_type=norm_type) == expected
    assert global_norm([], mesh=alone, norm_type=norm_type) == 0.0


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("norm_type", [2.0, math.inf])
def test_what_is_not_finite_shows(value: float, norm_type: float, alone: Mesh) -> None:
    assert not math.isfinite(global_norm([torch.tensor([1.0, value])], mesh=alone, norm_type=norm_type))


@pytest.mark.parametrize(
    ("last", "max_norm", "norm", "left"),
    [(4.0, 1.0, 5.0, 0.6), (4.0, None, 5.0, 3.0), (math.inf, 1.0, math.inf, 3.0)],
    ids=["clipped", "measured", "not finite"],
)
def test_a_norm_that_is_only_measured_or_not_finite_leaves_the_gradients(
    last: float, max_norm: float | None, norm: float, left: float, alone: Mesh
) -> None:
    """Scaling by 1 / infinity would make zeros of all that is finite. What another rank counts is scaled as well."""
    gradients = {name: torch.tensor([value]) for name, value in (("a", 3.0), ("b", last), ("elsewhere", 3.0))}
    found = clip_global_norm(
        gradients, max_norm=max_norm, norm_type=2.0, owns=lambda name: name != "elsewhere", mesh=alone
    )
    assert found == norm
    assert [gradients[name].item() for name in ("a", "elsewhere")] == pytest.approx([left, left], rel=1e-6)


def test_another_norm_is_refused(alone: Mesh) -> None:
    with pytest.raises(ConfigError, match=r"2 or infinity .norm_type=1\.0."):
        global_norm([], mesh=alone, norm_type=1.0)


def test_a_generator_is_scaled_and_nothing_at_all_is_fine() -> None:
    """torchtitan PR #1258: a generator was used up by the norm. DeepSpeed #1522: a stage without any weight crashed."""
    gradients = [torch.tensor([3.0]), torch.tensor([4.0])]
    clip((gradient for gradient in gradients), norm=5.0, max_norm=1.0)
    assert [gradient.item() for gradient in gradients] == pytest.approx([0.6, 0.8], rel=1e-6)
    clip(iter(()), norm=5.0, max_norm=1.0)
    clip(gradients, norm=1.0, max_norm=math.inf)
    assert [gradient.item() for gradient in gradients] == pytest.approx([0.6, 0.8], rel=1e-6)


@pytest.mark.parametrize("norm_type", [2.0, math.inf])
def test_a_sparse_gradient_has_the_norm_of_its_rows_and_is_scaled(norm_type: float, alone: Mesh) -> None:
    """A row that was looked up twice is there twice, and counts as its sum."""
    rows, values = torch.tensor([[0, 2, 0]]), torch.tensor([[3.0, 0.0], [0.0, -4.0], [1.0, 0.0]])
    sparse = torch.sparse_coo_tensor(rows, values, (4, 2), check_invariants=True)
    dense = sparse.to_dense()
    norms = [global_norm([one, torch.ones(2)], mesh=alone, norm_type=norm_type) for one in (sparse, dense)]
    assert norms[0] == pytest.approx(norms[1])
    clip([sparse, dense], norm=norms[0], max_norm=1.0)
    assert torch.equal(sparse.to_dense(), dense)


@pytest.mark.parametrize("given", [-1.0, -math.inf, math.nan, "1", True])
def test_what_is_no_norm_is_refused(given: object) -> None:
    """A negative one would turn all gradients around, and NaN do nothing."""
    with pytest.raises(ConfigError, match="clipped to a number of at least 0"):
        require_max_norm(given)
    for allowed in (None, 0, 1.0, math.inf):
        require_max_norm(allowed)
