from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fullbore.written_file import write_whole


def test_a_new_file_has_what_was_given_line_ends_and_all(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", iter(["x\r\n", "ü\n"]))
    assert (tmp_path / "a").read_bytes() == "x\r\nü\n".encode()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_link_stays_one_and_the_file_keeps_its_permissions(tmp_path: Path) -> None:
    held, link = tmp_path / "held", tmp_path / "link"
    held.write_text("old")
    held.chmod(0o640)
    link.symlink_to("held")
    write_whole(link, ["new"])
    assert (link.is_symlink(), held.read_text(), held.stat().st_mode & 0o777) == (True, "new", 0o640)
    dangling = tmp_path / "dangling"
    dangling.symlink_to("made")
    write_whole(dangling, ["new"])
    assert (dangling.is_symlink(), (tmp_path / "made").read_text()) == (True, "new")


def test_another_name_of_the_file_keeps_what_it_had(tmp_path: Path) -> None:
    held, other = tmp_path / "held", tmp_path / "other"
    held.write_text("old")
    other.hardlink_to(held)
    write_whole(other, ["new"])
    assert (held.read_text(), other.read_text()) == ("old", "new")


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    """As a device is. No test names a device: one that fails as root would replace the machine's."""
    pipe, heard = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()), daemon=True)
    reader.start()
    write_whole(pipe, ["a", "b"])
    assert pipe.is_fifo()
    reader.join()
    assert heard == ["ab"]


def test_what_fails_halfway_leaves_the_old_file(tmp_path: Path) -> None:
    def pieces() -> Iterator[str]:
        yield "new"
        raise ZeroDivisionError

    held = tmp_path / "held"
    held.write_text("old")
    with pytest.raises(ZeroDivisionError):
        write_whole(held, pieces())
    assert held.read_text() == "old"
    assert list(tmp_path.iterdir()) == [held]


def test_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, ["x"])
