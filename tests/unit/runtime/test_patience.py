from __future__ import annotations

from pathlib import Path

import pytest

from fullbore.errors import TransferStalled
from fullbore.ir.recipe import Layout
from fullbore.runtime.device import CpuDevice
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.patience import Patience
from fullbore.runtime.processes.board import ProgressBoard


def timed_out() -> None:
    raise RuntimeError("Timed out waiting 1ms for recv operation to complete")


@pytest.mark.parametrize(("compiles", "first"), [(True, 20.0), (False, 4.0)])
def test_the_first_call_of_what_compiles_may_take_the_time_of_a_start_up(
    tmp_path: Path, compiles: bool, first: float
) -> None:
    """For the caller, in reductions, and for whoever watches the board; the next call has the usual time again."""
    board = ProgressBoard(tmp_path / "board", num_ranks=1, timeout_s=4.0)
    mesh = Mesh(Layout(pipeline=1), device=CpuDevice(), timeout_s=4.0, board=board)
    patience = Patience(4.0, compiles=compiles, mesh=mesh, board=board)

    def told() -> float | None:
        board.write(0, period="step 1", doing="0F0", waiting=False)
        return board.read(0).patience_s

    for call in ("step", "evaluate"):
        for seconds in (first, 4.0, 4.0):
            with patience.during(call) as timeout_s:
                assert (timeout_s, told()) == (seconds, seconds)
                with pytest.raises(TransferStalled, match=f"waited {seconds:g} s for the other ranks"):
                    mesh.together(timed_out)
            assert told() == 4.0
            with pytest.raises(TransferStalled, match="waited 4 s for the other ranks"):
                mesh.together(timed_out)
    board.close()
