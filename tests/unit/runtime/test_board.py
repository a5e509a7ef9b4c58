from __future__ import annotations

from pathlib import Path

from fullbore.runtime.board import ProgressBoard


def test_each_rank_reads_what_another_wrote(tmp_path: Path) -> None:
    path = tmp_path / "board"
    ours, theirs = ProgressBoard(path, num_ranks=2), ProgressBoard(path, num_ranks=2)
    theirs.write(1, step=3, doing="1F2", waiting=True)
    entry = ours.read(1)
    assert (entry.step, entry.doing, entry.waiting) == (3, "1F2", True)
    assert entry.describe() == "1F2 of step 3"
    assert ours.read(0).describe() == "start-up"
    ours.close()
    theirs.close()


def test_what_does_not_fit_is_cut_off_and_leaves_the_neighbour_alone(tmp_path: Path) -> None:
    board = ProgressBoard(tmp_path / "board", num_ranks=2)
    board.write(1, step=1, doing="1F0", waiting=False)
    board.write(0, step=1, doing="x" * 500, waiting=False)
    assert board.read(0).doing == "x" * 96
    assert board.read(1).doing == "1F0"
    board.close()
