from __future__ import annotations

from collections.abc import Sequence

import pytest

from fullbore.costs.layer import LayerCost
from fullbore.report.profile import render_profile

ALIKE = "alike, with the same sizes and times: "


def layers(*times_ns: int) -> list[LayerCost]:
    return [LayerCost(f"layers.{index}", time, time, time) for index, time in enumerate(times_ns)]


@pytest.mark.parametrize(
    ("times_ns", "said"),
    [
        ((1, 7, 7, 7, 2), "layers.1 to layers.3"),
        ((7, 8, 7, 8, 8), "layers.0, layers.2; layers.1, layers.3 to layers.4"),
        ((1, 2, 3), None),
        ((0, 0, 5), None),
    ],
    ids=["blocks", "in turn", "none", "nothing was measured"],
)
def test_layers_with_the_same_times_are_named(times_ns: Sequence[int], said: str | None) -> None:
    """In a line of their own at the end."""
    lines = render_profile(layers(*times_ns), description="a model").splitlines()
    assert [line for line in lines if line.startswith("alike")] == ([] if said is None else [ALIKE + said])
    if said is not None:
        assert (lines[-2], lines[-1]) == ("", ALIKE + said)


def test_equal_times_of_layers_of_other_sizes_are_chance() -> None:
    one, other = layers(7, 7)
    text = render_profile([one, LayerCost(other.name, 7, 7, 7, parameters=3)], description="a model")
    assert "alike" not in text
