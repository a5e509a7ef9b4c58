from __future__ import annotations

import pytest

from fullbore.ir.forward_only import forward_only
from fullbore.ir.placement import Placement
from fullbore.schedules.registry import get
from fullbore.simulate.memory import peak_activations
from tests.timetable import schedule_of


@pytest.mark.parametrize(
    ("name", "num_ranks", "num_microbatches", "peaks"),
    [
        ("1f1b", 2, 1, (1, 1)),
        ("1f1b", 2, 2, (2, 1)),
        ("1f1b", 2, 8, (2, 1)),
        ("1f1b", 4, 8, (4, 3, 2, 1)),
        ("gpipe", 4, 8, (8, 8, 8, 8)),
        ("gpipe", 2, 1, (1, 1)),
        ("eager-1f1b", 4, 8, (7, 5, 3, 1)),
        ("eager-1f1b", 4, 4, (4, 4, 3, 1)),
    ],
)
def test_microbatches_alive(name: str, num_ranks: int, num_microbatches: int, peaks: tuple[int, ...]) -> None:
    """Min(p - r, m) in 1F1B, m everywhere with all forwards first."""
    assert peak_activations(get(name).build(num_ranks, num_microbatches=num_microbatches)) == peaks


def test_a_split_backward_keeps_the_activation_until_its_weight_half() -> None:
    split = schedule_of([0], ["0F0 0I0 0F1 0I1 0W0 0W1"], num_microbatches=2)
    whole = schedule_of([0], ["0F0 0B0 0F1 0B1"], num_microbatches=2)
    assert (peak_activations(split), peak_activations(whole)) == ((2,), (1,))


def test_evaluation_keeps_nothing() -> None:
    assert peak_activations(forward_only(Placement.linear(2), num_microbatches=4)) == (0, 0)
