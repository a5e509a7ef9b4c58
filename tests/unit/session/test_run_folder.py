"""Which folder a run writes into: its own, whatever else starts at the same moment."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from fullbore.config.load import load_run
from fullbore.config.run import RunConfig, TrainConfig
from fullbore.errors import ConfigError
from fullbore.session import run_folder as module
from fullbore.session.run_folder import run_folder


class _Clock(datetime):
    """One second that does not pass."""

    @classmethod
    def now(cls, tz: object = None) -> _Clock:
        del tz
        return cls(2026, 1, 2, 3, 4, 5)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "datetime", _Clock)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def config(run_dir: str | None = None) -> RunConfig:
    return RunConfig(train=TrainConfig(run_dir=run_dir))


def test_runs_of_the_same_second_have_folders_of_their_own() -> None:
    """Also where an earlier one has gone: the number of those that are there is no free number."""
    with run_folder(config()) as first, run_folder(config()) as second, run_folder(config()) as third:
        assert [first.name, second.name, third.name] == ["20260102-030405", "20260102-030405-2", "20260102-030405-3"]
        (first / "run.toml").unlink()
        first.rmdir()
        with run_folder(config()) as fourth, run_folder(config()) as fifth:
            assert (fourth.name, fifth.name) == ("20260102-030405", "20260102-030405-4")
        first.mkdir()


def test_many_at_once_never_share() -> None:
    taken: list[Path] = []
    go = threading.Barrier(8, timeout=5.0)

    def start() -> None:
        go.wait()
        with run_folder(config()) as folder:
            taken.append(folder)
            go.wait()

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(taken)) == 8


def test_a_given_folder_is_taken_by_one_run() -> None:
    with run_folder(config("mine")) as folder:
        assert load_run(folder / "run.toml") == config("mine")
        with pytest.raises(ConfigError, match=r"train\.run_dir mine already holds a run"), run_folder(config("mine")):
            pass
    assert not Path("mine").exists()


@pytest.mark.parametrize("name", ["run.toml", "profile.json", "plan.json", "schedule.txt", "metrics.jsonl", "trace"])
def test_a_folder_that_holds_a_run_is_refused(name: str) -> None:
    Path("mine").mkdir()
    (Path("mine") / name).write_text("x")
    with pytest.raises(ConfigError, match="mine already holds a run; choose another"), run_folder(config("mine")):
        pass
    assert (Path("mine") / name).read_text() == "x"


@pytest.mark.parametrize("rank", [None, "1"])
@pytest.mark.parametrize("name", ["first/trace", "first/trace/again"])
def test_a_folder_in_the_trace_of_a_run_is_refused(
    name: str, rank: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.MonkeyPatch.context() as alone:
        alone.delenv("RANK", raising=False)
        with run_folder(config("first")) as folder:
            (folder / "plan.json").write_text("{}")
            (folder / "trace").mkdir()
            (folder / "trace" / "rank-0000.jsonl").touch()
    refused = pytest.raises(ConfigError, match=rf"run_dir {name} lies in the run in .*first; choose another folder")
    with refused, run_folder(config(name)):
        pass
    assert [path.name for path in (folder / "trace").iterdir()] == ["rank-0000.jsonl"]


def test_a_folder_called_trace_beside_ones_own_run_file_is_free() -> None:
    for name in ("run.toml", "profile.json"):
        Path(name).write_text("{}")
    with run_folder(config("trace/one")) as folder:
        assert (folder / "run.toml").exists()


def test_a_run_that_fails_before_it_writes_leaves_the_folder_as_it_was() -> None:
    Path("mine").mkdir()
    (Path("mine") / "notes.txt").write_text("x")
    for _ in range(2):
        with pytest.raises(RuntimeError), run_folder(config("mine")):
            raise RuntimeError
    assert [path.name for path in Path("mine").iterdir()] == ["notes.txt"]
    with pytest.raises(KeyboardInterrupt), run_folder(config()):
        raise KeyboardInterrupt
    assert not any(Path("runs").iterdir())


def test_what_a_run_has_written_stays() -> None:
    with run_folder(config("mine")) as folder:
        (folder / "profile.json").write_text("{}")
    assert {path.name for path in Path("mine").iterdir()} == {"run.toml", "profile.json"}


def test_in_a_group_only_rank_0_takes_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with run_folder(config("mine")) as folder:
        monkeypatch.setenv("RANK", "1")
        with run_folder(config("mine")) as same, run_folder(config()):
            assert same == folder
        assert not Path("runs").exists()
        assert (folder / "run.toml").exists()
        (folder / "plan.json").write_text("{}")
        with pytest.raises(ConfigError, match="already holds a run"), run_folder(config("mine")):
            pass


@pytest.mark.parametrize("run_dir", ["file", "file/run", None])
def test_a_folder_that_cannot_be_made_is_one_sentence(run_dir: str | None) -> None:
    Path("file" if run_dir else "runs").write_text("x")
    with (
        pytest.raises(ConfigError, match=r"is a file|cannot make the run folder .*Not a directory"),
        run_folder(config(run_dir)),
    ):
        pass


@contextmanager
def a_full_disk() -> Iterator[None]:
    """Files can be made, and nothing written into them; the error then names no file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("run_dir", "named"), [("mine", "mine"), (None, "runs/20260102-030405")])
def test_a_full_disk_is_one_sentence_and_does_not_take_the_folder(run_dir: str | None, named: str) -> None:
    with (
        a_full_disk(),
        pytest.raises(ConfigError, match=f"cannot write into the run folder {named}: File too large"),
        run_folder(config(run_dir)),
    ):
        pass
    assert not Path(named).exists()
    with run_folder(config(run_dir)) as folder:
        assert load_run(folder / "run.toml") == config(run_dir)
