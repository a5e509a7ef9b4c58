from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import pytest

from fullbore.runtime.processes.board import START_UP_FACTOR, BoardEntry, ProgressBoard, evaluation_name, step_name


def test_each_rank_reads_what_another_wrote(tmp_path: Path) -> None:
    path = tmp_path / "board"
    ours, theirs = (ProgressBoard(path, num_ranks=2, timeout_s=4.0) for _ in range(2))
    theirs.write(1, period=step_name(3), doing="1F2", waiting=True)
    entry = ours.read(1)
    assert (entry.sequence, entry.patience_s, entry.waiting) == (1, 4.0, True)
    assert (entry.doing, entry.period) == ("1F2", "step 3")
    assert ours.read(0).sequence == 0
    ours.close()
    theirs.close()


def test_what_does_not_fit_is_cut_off_and_leaves_the_neighbour_alone(tmp_path: Path) -> None:
    board = ProgressBoard(tmp_path / "board", num_ranks=2)
    board.write(1, period="step 1", doing="1F0", waiting=False)
    board.write(0, period="step 1" * 99, doing="x" * 500, waiting=False)
    assert board.read(0).doing == "x" * 63
    assert board.read(1).doing == "1F0"
    board.close()


class _Killed:
    """Ends a rank between the first and the last byte of a word."""

    def __bool__(self) -> bool:
        raise SystemExit


def test_a_rank_that_ends_in_the_middle_of_a_word_leaves_its_last_whole_one(tmp_path: Path) -> None:
    """The reader compared two looks, which are the same where the writer has stopped."""
    board = ProgressBoard(tmp_path / "board", num_ranks=2, timeout_s=4.0)
    for number in range(1, 4):
        board.write(1, period=step_name(number), doing=f"1F{number}", waiting=False)
        whole = board.read(1)
        with pytest.raises(SystemExit):
            board.write(1, period="step 9", doing="1B9", waiting=_Killed())  # type: ignore[arg-type]
        assert board.read(1) == whole
        assert (whole.doing, whole.period) == (f"1F{number}", f"step {number}")
    board.close()


def test_words_that_come_while_one_is_read_are_no_half_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of them is written over the one that is read."""
    writer = ProgressBoard(tmp_path / "board", num_ranks=1)
    writer.write(0, period="step 1", doing="1F1", waiting=False)
    coming = [2, 3]

    class Overtaken(mmap.mmap):
        def __getitem__(self, key: Any) -> Any:
            before = super().__getitem__(key)
            if not isinstance(key, slice):
                return before
            while coming:
                number = coming.pop(0)
                writer.write(0, period=f"step {number}", doing=f"1F{number}", waiting=False)
            behind = before.rindex(b"step")
            return before[:behind] + super().__getitem__(key)[behind:]

    monkeypatch.setattr(mmap, "mmap", Overtaken)
    reader = ProgressBoard(tmp_path / "board", num_ranks=1)
    assert (reader.read(0).doing, reader.read(0).period) == ("1F3", "step 3")
    reader.close()
    writer.close()


def test_of_more_words_than_the_count_has_the_last_is_read(tmp_path: Path) -> None:
    board = ProgressBoard(tmp_path / "board", num_ranks=1)
    for number in range(600):
        board.write(0, period="step 1", doing=f"0F{number}", waiting=False)
        assert board.read(0).doing == f"0F{number}"
    board.close()


def test_start_up_may_take_longer_than_a_step_and_some_work_as_long_as_it_likes(tmp_path: Path) -> None:
    board = ProgressBoard(tmp_path / "board", num_ranks=1, timeout_s=4.0)
    board.start_up(0, "reading the data")
    assert board.read(0).patience_s == START_UP_FACTOR * 4.0
    board.unhurried(0, "comparing")
    assert board.read(0).patience_s is None
    board.close()


def test_a_step_that_compiles_may_take_longer_than_the_others(tmp_path: Path) -> None:
    board = ProgressBoard(tmp_path / "board", num_ranks=1, timeout_s=4.0)
    found = []
    for times in (5, 1):
        board.allow(times)
        board.write(0, period="step 1", doing="0F0", waiting=False)
        found.append(board.read(0).patience_s)
    assert found == [20.0, 4.0]


def test_a_rank_that_waited_in_vain_stays_a_waiting_one(tmp_path: Path) -> None:
    """Its neighbours take it for a victim, not for the rank that is stuck."""
    board = ProgressBoard(tmp_path / "board", num_ranks=1)
    board.start_up(0, "building its stage")
    with board.waiting(0):
        assert board.read(0).waiting
    assert not board.read(0).waiting
    with pytest.raises(TimeoutError), board.waiting(0):
        raise TimeoutError
    assert (board.read(0).waiting, board.read(0).doing) == (True, "building its stage")
    board.close()


def test_a_board_is_never_opened_through_a_link(tmp_path: Path) -> None:
    """Under torchrun its name can be guessed, and the folder is everybody's."""
    (tmp_path / "board").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=os.strerror(40)):
        ProgressBoard(tmp_path / "board", num_ranks=1)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("doing", "period", "where", "has_been"),
    [
        ("1F2", "step 3", "in 1F2 of step 3", "in 1F2 of step 3"),
        ("the optimizer", "step 3", "in the optimizer of step 3", "in the optimizer of step 3"),
        ("drawing the batch", "step 3", "while drawing the batch of step 3", "drawing the batch of step 3"),
        ("reading the data", "", "while reading the data", "reading the data"),
        ("1F2", evaluation_name(3), "in 1F2 of the evaluation after step 2", "in 1F2 of the evaluation after step 2"),
        ("1F2", evaluation_name(1), "in 1F2 of the evaluation before step 1", "in 1F2 of the evaluation before step 1"),
        ("", "", "while starting", "starting"),
    ],
)
def test_a_place_reads_well_in_a_sentence(doing: str, period: str, where: str, has_been: str) -> None:
    entry = BoardEntry(1, 1, None, False, doing, period)
    assert (entry.where(), entry.has_been()) == (where, has_been)
