from __future__ import annotations

import pytest

from fullbore.models.steadiness import LayerRounds, warn_of_slow_rounds

BEGIN = (
    "warning: the usual round of some layers took longer than the fastest one, or than the CPU ran it: other work on "
    "the machine, or layers that wait, make their costs uncertain; longer than undisturbed took "
)
END = "; measure again when the machine is quiet"


def rounds(name: str, *wall_ns: int, cpu_ns: tuple[int, ...] = ()) -> LayerRounds:
    return LayerRounds(name, wall_ns, cpu_ns)


@pytest.mark.parametrize(
    ("layer", "slowdown"),
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
def test_a_round_is_held_against_what_it_would_take_undisturbed(layer: LayerRounds, slowdown: float) -> None:
    assert layer.slowdown == pytest.approx(slowdown)


def test_a_quiet_machine_is_not_talked_about() -> None:
    """Up to 1.3 times were measured where a core was free."""
    assert warn_of_slow_rounds([rounds("a", 100, 130, 140), rounds("b", 100, 101, 900)]) is None


def test_layers_that_were_measured_together_are_named_together() -> None:
    pool = (100, 200, 210, 220)
    layers = [rounds("embed", 300, 310, 300), *(rounds(f"layers.{i}", *pool) for i in range(3)), rounds("head", 40, 90)]
    assert warn_of_slow_rounds(layers) == f"{BEGIN}layers.0 to layers.2 (2.0 times), head (1.6 times){END}"


def test_of_layers_measured_together_only_those_are_named() -> None:
    """In turn with others that were quiet, or that were disturbed otherwise."""
    attention, quiet, slow = (100, 200, 210, 220), (100, 101, 102, 103), (100, 300, 310, 320)
    for other, told in ((quiet, ""), (slow, ", mlp.0, mlp.1 (3.0 times)")):
        layers = [
            rounds(f"{kind}.{i}", *pool) for i in range(2) for kind, pool in (("attn", attention), ("mlp", other))
        ]
        assert warn_of_slow_rounds(layers) == f"{BEGIN}attn.0, attn.1 (2.0 times){told}{END}"


def test_of_many_layers_three_are_named() -> None:
    layers = [rounds(f"layers.{i}", 100, 200 + i, 300) for i in range(5)]
    said = f"{BEGIN}layers.0 (2.0 times), layers.1 (2.0 times), layers.2 (2.0 times), 2 more{END}"
    assert warn_of_slow_rounds(layers) == said


def test_a_layer_that_takes_next_to_nothing_decides_nothing() -> None:
    """Below 3 % of all."""
    block = rounds("block", 1000, 1010, 1020)
    assert warn_of_slow_rounds([rounds("embed", 10, 29, 29), block]) is None
    assert warn_of_slow_rounds([rounds("embed", 10, 39, 39), block]) == f"{BEGIN}embed (3.9 times){END}"
