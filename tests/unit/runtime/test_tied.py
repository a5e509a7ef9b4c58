from __future__ import annotations

import pytest
import torch
from torch import nn

from fullbore.errors import ModelError
from fullbore.ids import StageIndex
from fullbore.ir.recipe import Layout
from fullbore.runtime.device import CpuDevice
from fullbore.runtime.gradients import GradientStore
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.tied import _BUCKET_BYTES, TiedGradients, _buckets, holders_of, require_no_max_norm


def test_alone_every_weight_has_one_holder_and_nothing_is_reduced() -> None:
    mesh = Mesh(Layout(pipeline=1), device=CpuDevice(), timeout_s=1.0)
    one, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    holders = holders_of({StageIndex(1): {"b": other, "a": one}, StageIndex(0): {"a": one}}, mesh=mesh)
    assert holders == {"a": (0,), "b": (0,)}
    assert list(holders) == ["a", "b"], "in the order of the stages"
    tied = TiedGradients(holders, mesh=mesh, timeout_s=1.0)
    store = GradientStore({"a": one})
    tied.begin(store, weights={"a": one})
    tied.reduce(store, weights={"a": one})
    assert (tied.names, tied.owns("a"), store.gradients()) == ((), True, {})


def test_gradients_travel_together_in_order_up_to_a_size() -> None:
    """Every gradient once; one dtype a bucket; what is too large goes alone."""
    half = _BUCKET_BYTES // 8
    narrow, wide = torch.empty(3), torch.empty(3, dtype=torch.float64)
    large = torch.empty(2 * half + 1)
    sizes = [[(t.dtype, t.numel()) for t in bucket] for bucket in _buckets([narrow, narrow, wide, large, narrow])]
    assert sizes == [
        [(torch.float32, 3), (torch.float32, 3)],
        [(torch.float64, 3)],
        [(torch.float32, 2 * half + 1)],
        [(torch.float32, 3)],
    ]
    pair = torch.empty(half)
    assert [len(bucket) for bucket in _buckets([pair, pair, pair])] == [2, 1]
    assert list(_buckets([])) == []


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_max_norm_is_refused_for_a_weight_that_another_rank_holds_too(kind: type[nn.Embedding]) -> None:
    alone, tied = kind(5, 3, max_norm=1.0), kind(5, 3, max_norm=0.5)
    plain = kind(5, 3)
    weights = {"alone": alone.weight, "tied": tied.weight, "plain": plain.weight}
    require_no_max_norm([nn.Sequential(alone, tied), plain], weights=weights, shared=["plain"])
    wanted = rf"tied lives on several ranks .*, and {kind.__name__}.max_norm=0.5. writes into it in each forward"
    with pytest.raises(ModelError, match=wanted):
        require_no_max_norm([nn.Sequential(alone, tied), plain], weights=weights, shared=["plain", "tied"])
