"""One rule for every option that names a file to write."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from fullbore.cli.file_kind import SCHEDULE
from fullbore.cli.output_file import Output, require_outputs
from fullbore.errors import ConfigError
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


@pytest.mark.parametrize("name", COMMANDS)
def test_a_name_that_the_system_refuses_is_refused_at_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, option, noun = COMMANDS[name]
    path = "n" * 300
    code, out, err = run(capsys, *command, option, path)
    assert (code, out) == (2, "")
    said = f"{path[:170]}...{path[:29]}"
    assert err == f"fullbore: {option}: cannot write the {noun} {said}: File name too long\n"


@pytest.mark.parametrize(
    ("descriptor", "takes_dash", "goes"),
    [
        (1, True, "stdout goes into; name another, or --csv -"),
        (1, False, "stdout goes into; name another"),
        (2, True, "stderr goes into; name another"),
    ],
)
@pytest.mark.parametrize("held", ["", "0F0\n"])
def test_a_file_that_a_stream_goes_into_is_not_replaced(
    descriptor: int, takes_dash: bool, goes: str, held: str
) -> None:
    """The answer went into the file that was there before, which then had no name."""
    Path("log").write_text(held)
    before = os.dup(descriptor)
    try:
        with Path("log").open("a") as log:
            os.dup2(log.fileno(), descriptor)
        output = Output(option="--csv", path=Path("log"), kind=SCHEDULE, takes_dash=takes_dash)
        with pytest.raises(ConfigError) as refused:
            require_outputs(output)
    finally:
        os.dup2(before, descriptor)
        os.close(before)
    assert str(refused.value) == f"--csv log is the file that {goes}"
    require_outputs(output)


RUN = ("profile.json", "plan.json", "schedule.txt", "metrics.jsonl")


@pytest.mark.parametrize(
    ("written", "other"), [(written, other) for written in RUN for other in (*RUN, "trace") if written != other]
)
def test_a_run_keeps_its_files(written: str, other: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also one without metrics (it is emulated, or ended before its first step); also a file that is empty, or not yet
    there."""
    Path("run").mkdir()
    for name in ("run.toml", other):
        Path("run", name).touch()
    held, link = Path("run", written), Path("link")
    link.symlink_to(held)
    for path in (held, link):
        said = f"fullbore: --text {path} belongs to the run in {Path('run').resolve()}; name another file\n"
        assert run(capsys, "schedule", "export", *SIZES, "--text", str(path)) == (2, "", said)
        assert not held.exists()
        held.touch()
        assert run(capsys, "schedule", "export", *SIZES, "--text", str(path)) == (2, "", said)
        assert held.stat().st_size == 0
        held.unlink()


@pytest.mark.parametrize("held", [None, "", "0F0\n"])
@pytest.mark.parametrize("name", ["rank-0000.jsonl", "order.csv", "below/order.csv"])
def test_a_run_keeps_what_lies_in_its_trace(name: str, held: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the trace is a link to a larger disk."""
    for trace in ("run/trace", "disk/spans"):
        Path(trace, "below").mkdir(parents=True)
        if held is not None:
            Path(trace, name).write_text(held)
    Path("linked").mkdir()
    Path("linked/trace").symlink_to("../disk/spans")
    Path("link").symlink_to("run/trace")
    for run_dir in ("run", "linked"):
        for own in ("run.toml", "plan.json"):
            Path(run_dir, own).touch()
    for path, of in ((f"run/trace/{name}", "run"), (f"linked/trace/{name}", "linked"), (f"link/{name}", "run")):
        code, out, err = run(capsys, "schedule", "export", *SIZES, "--csv", path)
        assert (code, out) == (2, "")
        assert err == f"fullbore: --csv {path} belongs to the run in {Path(of).resolve()}; name another file\n"
        assert (Path(path).read_text() if Path(path).exists() else None) == held


@pytest.mark.parametrize("beside", [("run.toml",), ("profile.json", "plan.json")])
def test_a_folder_of_ones_own_is_no_run(beside: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    for name in beside:
        Path(name).touch()
    for _ in range(2):
        assert run(capsys, "schedule", "export", *SIZES, "--text", "schedule.txt")[0] == 0
    Path("schedule.txt").unlink()
    Path("trace").mkdir()
    assert run(capsys, "schedule", "export", *SIZES, "--text", "trace/order.txt")[0] == 0
