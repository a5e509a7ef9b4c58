from __future__ import annotations

import pytest

from fullbore.models.steadiness import LayerRounds, said_of_load

BEGIN = (
    "warning: this machine was busy with other work while the layers were measured, so their costs are uncertain; "
    "longer than undisturbed took "
)
END = "; measure again when it is quiet"


def rounds(name: str, *wall_ns: int, cpu_ns: tuple[int, ...] = ()) -> LayerRounds:
    return LayerRounds(name, wall_ns, cpu_ns)


@pytest.mark.parametrize(
    ("layer", "disturbed"),
    [
        (rounds("a", 100, 110, 300), 1.1),
        (rounds("a", 100, 290, 300), 2.9),
        (rounds("a", 300, 310, 300, cpu_ns=(100, 150, 100)), 3.0),
        (rounds("a", 300, cpu_ns=(100,)), 3.0),
        (rounds("a", 100, 110, 120, cpu_ns=(115, 115, 115)), 1.1),
        (rounds("a", 0, 0), 1.0),
    ],
    ids=["one late round", "most of them late", "load all the time", "one round", "quiet", "nothing to do"],
)
def test_a_round_is_held_against_what_it_would_take_undisturbed(layer: LayerRounds, disturbed: float) -> None:
    assert layer.disturbed == pytest.approx(disturbed)


def test_a_quiet_machine_is_not_talked_about() -> None:
    """Up to 1.3 times were measured where a core was free."""
    assert said_of_load([rounds("a", 100, 130, 140), rounds("b", 100, 101, 900)]) is None


def test_layers_that_were_measured_together_are_named_together() -> None:
    pool = (100, 200, 210, 220)
    layers = [rounds("embed", 300, 310, 300), *(rounds(f"layers.{i}", *pool) for i in range(3)), rounds("head", 40, 90)]
    assert said_of_load(layers) == f"{BEGIN}layers.0 to layers.2 (2.0 times), head (1.6 times){END}"


def test_of_many_layers_three_are_named() -> None:
    layers = [rounds(f"layers.{i}", 100, 200 + i, 300) for i in range(5)]
    said = f"{BEGIN}layers.0 (2.0 times), layers.1 (2.0 times), layers.2 (2.0 times), 2 more{END}"
    assert said_of_load(layers) == said


def test_a_layer_that_takes_next_to_nothing_decides_nothing() -> None:
    """Below 3 % of all."""
    block = rounds("block", 1000, 1010, 1020)
    assert said_of_load([rounds("embed", 10, 29, 29), block]) is None
    assert said_of_load([rounds("embed", 10, 39, 39), block]) == f"{BEGIN}embed (3.9 times){END}"
