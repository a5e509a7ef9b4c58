from __future__ import annotations

import pytest

from fullbore.costs.layer import LayerCost
from fullbore.errors import CostsError
from fullbore.ir.action import Kind
from fullbore.partition.rescale import rescale

LAYERS = [
    LayerCost("embed", 1, 0, 2),
    LayerCost("block0", 3, 3, 3),
    LayerCost("block1", 3, 3, 3),
    LayerCost("head", 5, 4, 3),
]


def test_the_layers_of_a_stage_share_its_factor() -> None:
    found = rescale(
        LAYERS,
        layers_per_stage=[2, 2],
        measured=[{Kind.FORWARD: 8, Kind.BACKWARD: 16}, {Kind.FORWARD: 80, Kind.BACKWARD: 130}],
    )
    assert found[:2] == (LayerCost("embed", 2, 0, 4), LayerCost("block0", 6, 6, 6))
    assert found[2:] == (LayerCost("block1", 30, 30, 30), LayerCost("head", 50, 40, 30))


def test_the_halves_of_a_split_backward_have_their_own_factors() -> None:
    found = rescale(LAYERS[1:2], layers_per_stage=[1], measured=[{Kind.BACKWARD_INPUT: 30, Kind.BACKWARD_WEIGHT: 1}])
    assert found == (LayerCost("block0", 3, 30, 1),)


def test_sums_are_exactly_what_was_measured() -> None:
    layers = [LayerCost(f"layer{i}", 7, 5, 3) for i in range(6)]
    found = rescale(layers, layers_per_stage=[6], measured=[{Kind.FORWARD: 1001, Kind.BACKWARD: 997}])
    assert sum(layer.forward_ns for layer in found) == 1001
    assert sum(layer.backward_input_ns + layer.backward_weight_ns for layer in found) == 997
    assert {layer.forward_ns for layer in found} == {166, 167}


def test_what_the_profile_put_at_nothing_is_shared_out() -> None:
    layers = [LayerCost("a", 0, 0, 0), LayerCost("b", 0, 0, 0)]
    assert [layer.forward_ns for layer in rescale(layers, layers_per_stage=[2], measured=[{Kind.FORWARD: 9}])] == [5, 4]


def test_a_run_of_other_layers_is_refused() -> None:
    with pytest.raises(
        CostsError, match=r"the run cut 3 layers into 1 stages and measured 1; the profile has 4 layers"
    ):
        rescale(LAYERS, layers_per_stage=[3], measured=[{}])
