"""One rule for every option that names a file to write."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from tests.unit.cli.test_main import run

LAYER = {"name": "a", "forward_ns": 1, "backward_input_ns": 1, "backward_weight_ns": 1}
SIZES = ("1f1b", "-p", "2", "-m", "2")
COMMANDS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "show --csv": (("schedule", "show", *SIZES), "--csv", "schedule"),
    "show --svg": (("schedule", "show", *SIZES), "--svg", "picture"),
    "export --csv": (("schedule", "export", *SIZES), "--csv", "schedule"),
    "export --text": (("schedule", "export", *SIZES), "--text", "schedule"),
    "partition -o": (("partition", "costs.json", "-p", "2"), "-o", "recipe"),
    "profile -o": (("profile", "nothing.toml"), "-o", "costs file"),
}
QUICK = [name for name in COMMANDS if not name.startswith("profile")]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("costs.json").write_text(json.dumps({"layers": [LAYER, LAYER]}))
    Path("model.py").write_text("model = 1\n")
    Path("nothing.toml").touch()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_of_another_kind_stays(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, option, noun = COMMANDS[name]
    Path("link").symlink_to("model.py")
    for path in ("model.py", "link"):
        code, out, err = run(capsys, *command, option, path)
        assert (code, out) == (2, "")
        assert err == f"fullbore: {option} {path} exists and is no {noun}; name another file, or remove it\n"
    assert Path("model.py").read_text() == "model = 1\n"


@pytest.mark.parametrize("name", QUICK)
def test_its_own_kind_an_empty_file_and_a_pipe_are_written(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, option, _ = COMMANDS[name]
    Path("mine").touch()
    for _ in range(2):
        assert run(capsys, *command, option, "mine")[0] == 0
    assert Path("mine").stat().st_size > 0
    pipe, heard = Path("pipe"), list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()), daemon=True)
    reader.start()
    assert run(capsys, *command, option, "pipe")[0] == 0
    assert pipe.is_fifo()
    reader.join()
    assert heard == [Path("mine").read_text()]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_folder_is_no_file(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, option, _ = COMMANDS[name]
    code, out, err = run(capsys, *command, option, ".")
    assert (code, out) == (2, "")
    assert err == f"fullbore: {option} is the file to write (. is a folder); name one in it\n"


@pytest.mark.parametrize("name", [name for name in COMMANDS if not name.startswith("export")])
def test_stdout_has_the_answer_alone(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A dash made a file called -, or a CSV right before a drawing."""
    command, option, noun = COMMANDS[name]
    code, out, err = run(capsys, *command, option, "-")
    assert (code, out, Path("-").exists()) == (2, "", False)
    assert err == f"fullbore: the answer goes to stdout, and {option} - cannot; give the {noun} a file\n"


def test_a_loop_of_links_is_one_error(capsys: pytest.CaptureFixture[str]) -> None:
    Path("loop").symlink_to("loop")
    for command in (("partition", "loop", "-p", "2", "-o", "loop"), ("trace", "export", "loop", "-o", "loop")):
        code, out, err = run(capsys, *command)
        assert (code, out, err.count("\n")) == (2, "", 1), err


@pytest.mark.parametrize(
    ("name", "written"),
    [("partition -o", "plan.json"), ("profile -o", "profile.json"), ("export --text", "schedule.txt")],
)
def test_a_run_keeps_its_files(name: str, written: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, option, _ = COMMANDS[name]
    for held in ("run.toml", "metrics.jsonl"):
        Path(held).touch()
    before = "fullbore schedule" if written == "schedule.txt" else '{"layers_per_stage": [1], "forward_ns": 1}'
    Path(written).write_text(before)
    code, out, err = run(capsys, *command, option, written)
    assert (code, out) == (2, "")
    assert f"{option} {written} belongs to the run in {Path().resolve()}; name another file" in err
    assert Path(written).read_text() == before
