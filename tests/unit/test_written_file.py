from __future__ import annotations

import errno
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fullbore.written_file import write_whole

NOBODY = 65534


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


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "a", ["x"])
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_a_name_may_be_as_long_as_any(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    for text in ("old", "new"):
        write_whole(path, [text])
        assert path.read_text() == text


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder of ours that anybody may enter, with a file; pytest's own are closed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "held").write_text("the old text")
        yield folder


@contextmanager
def as_nobody() -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("only root acts for another user")
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(("owner", "mode"), [(0, 0o644), (NOBODY, 0o444)])
def test_a_read_only_file_is_refused_as_by_the_system(owner: int, mode: int, shared: Path) -> None:
    shared.chmod(0o777)
    (shared / "held").chmod(mode)
    if os.geteuid() == 0:
        os.chown(shared / "held", owner, -1)
    with as_nobody(), pytest.raises(PermissionError):
        write_whole(shared / "held", ["new"])
    assert [path.read_text() for path in shared.iterdir()] == ["the old text"]


@pytest.mark.parametrize("mode", [0o777, 0o755])
def test_a_file_that_anybody_may_write_keeps_its_owner(mode: int, shared: Path) -> None:
    """Also where its folder takes no other."""
    shared.chmod(mode)
    (shared / "held").chmod(0o666)
    with as_nobody():
        write_whole(shared / "held", ["new"])
    assert [(path.read_text(), path.stat().st_uid) for path in shared.iterdir()] == [("new", 0)]


def test_nothing_new_is_made_where_the_folder_takes_nothing(shared: Path) -> None:
    shared.chmod(0o755)
    with as_nobody(), pytest.raises(PermissionError):
        write_whole(shared / "new", ["new"])


def test_where_the_owner_cannot_be_given_the_file_is_written_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "as for an owner outside of a container")

    held = tmp_path / "held"
    held.write_text("the old text")
    before = held.stat().st_ino
    monkeypatch.setattr(os, "chown", refuse)
    write_whole(held, ["new"])
    assert [(path.read_text(), path.stat().st_ino) for path in tmp_path.iterdir()] == [("new", before)]


def test_root_leaves_a_file_to_its_owner(tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.write_text("old")
    if os.geteuid() == 0:
        os.chown(held, NOBODY, NOBODY)
    before = held.stat()
    write_whole(held, ["new"])
    after = held.stat()
    assert (held.read_text(), after.st_uid, after.st_gid) == ("new", before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino


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
