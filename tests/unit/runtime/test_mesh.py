from __future__ import annotations

from pathlib import Path

import pytest

from fullbore.errors import NeighborLost, TransferStalled
from fullbore.ir.recipe import Layout
from fullbore.runtime.device import CpuDevice
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.processes.board import ProgressBoard


@pytest.fixture
def board(tmp_path: Path) -> ProgressBoard:
    board = ProgressBoard(tmp_path / "board", num_ranks=1, timeout_s=4.0)
    board.write(0, period="step 2", doing="the gradient norm", waiting=False)
    return board


def failing(message: str) -> None:
    raise RuntimeError(message)


def test_a_rank_that_waits_for_the_others_is_known_as_one(board: ProgressBoard) -> None:
    """And not taken for the one that is stuck."""
    mesh = Mesh(Layout(pipeline=1), device=CpuDevice(), timeout_s=4.0, board=board)
    assert mesh.together(lambda: board.read(0).waiting)
    assert not board.read(0).waiting


@pytest.mark.parametrize(
    ("message", "kind", "said"),
    [
        (
            "[/pytorch/gloo/unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete",
            TransferStalled,
            "rank 0 waited 4 s for the other ranks in the gradient norm of step 2 (Timed out waiting 4000ms for recv "
            "operation to complete)",
        ),
        (
            "[/pytorch/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:1. This is typically caused by a remote "
            "worker crashing. Check the logs of the remote worker before reporting an error.",
            NeighborLost,
            "rank 0 lost another rank in the gradient norm of step 2 (Connection closed by peer [127.0.0.1]:1)",
        ),
    ],
)
def test_what_gloo_says_becomes_a_sentence(
    message: str, kind: type[Exception], said: str, board: ProgressBoard
) -> None:
    mesh = Mesh(Layout(pipeline=1), device=CpuDevice(), timeout_s=4.0, board=board)
    with pytest.raises(kind) as caught:
        mesh.together(lambda: failing(message))
    assert str(caught.value) == said


def test_other_errors_are_this_ranks_own(board: ProgressBoard) -> None:
    mesh = Mesh(Layout(pipeline=1), device=CpuDevice(), timeout_s=4.0, board=board)
    with pytest.raises(RuntimeError, match="a wrong device"):
        mesh.together(lambda: failing("a wrong device"))
