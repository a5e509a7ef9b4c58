"""The mesh on gloo processes: what travels between ranks, and who takes the group along."""

from __future__ import annotations

from typing import Any

from fullbore.runtime.processes.launch import launch
from tests.support.ranks import PRELOAD


def on_two_ranks(function: str) -> list[Any]:
    return launch(f"tests.support.mesh_ranks:{function}", num_ranks=2, preload=PRELOAD)


def test_tensors_of_every_type_travel_between_ranks() -> None:
    assert on_two_ranks("narrow_types") == [(True, True)] * 2


def test_the_last_of_several_meshes_takes_the_group_along() -> None:
    """In whatever order they are closed, and however often."""
    assert on_two_ranks("two_meshes") == [(3.0, False)] * 2
