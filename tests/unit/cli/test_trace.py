from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.trace_lint import lint
from tests.unit.cli.test_main import run
from tests.unit.trace.test_trace import steps_of, write


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    write(tmp_path, steps_of(*(step * 10**9 for step in range(12))))
    return tmp_path


def test_the_last_ten_steps_are_exported_soundly(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = run_dir / "trace.json"
    code, out, err = run(capsys, "trace", "export", str(run_dir), "-o", str(target))
    assert (code, err) == (0, "")
    assert out == f"{target}: steps 2 to 11 of 2 ranks, clocks agree to 0.04 us; open it in ui.perfetto.dev\n"
    assert lint(target.read_text()) == []


@pytest.mark.parametrize(("window", "steps"), [("3:5", [3, 4]), (":1", [0]), ("11:", [11]), ("10:99", [10, 11])])
def test_a_window_is_half_open(
    window: str, steps: list[int], run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(run_dir / "trace.json")
    code, out, _ = run(capsys, "trace", "export", str(run_dir), "-o", target, "--steps", window, "--json")
    assert code == 0
    assert json.loads(out) == {"path": target, "steps": steps, "clock_uncertainty_ns": 40}
    names = {e["name"] for e in json.loads(Path(target).read_text())["traceEvents"] if e.get("tid") == 999}
    assert names == {"thread_name", *(f"step {step}" for step in steps)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "out.json", "--steps", "20:30"], "it has 0 to 11, so --steps 0:12 is all of it"),
        (["-o", "out.json", "--steps", "a:b"], "a window of steps is written A:B"),
        (["-o", "out.json", "--steps", "9" * 5000 + ":"], f"A:B, as in 20:25 (given '{'9' * 169}...{'9' * 28}:')"),
        (["-o", "none/out.json"], "cannot write the timeline none/out.json: No such file or directory"),
        (["-o", "a-file/out.json"], "cannot write the timeline a-file/out.json: Not a directory"),
        (["-o", "."], "-o is the file to write (. is a folder); name one in it"),
        (["-o", ""], "-o is empty; give a path"),
        (["-o", "/"], "-o is the file to write (/ is a folder); name one in it"),
        (["-o", "trace/rank-0000.jsonl"], "trace holds the trace that is read, and -o trace/rank-0000.jsonl lies in"),
        (["-o", "a-link"], "trace holds the trace that is read, and -o a-link lies in it; name a file outside"),
        (["-o", "run.toml"], "-o run.toml exists and is no timeline; name another file, or remove it"),
        (["-o", "trace.svg"], "-o trace.svg exists and is no timeline; name another file, or remove it"),
        (["-o", "-", "--json"], "--json and -o - would both write to stdout; give the timeline a file"),
        (["-o", "a-folder"], "-o is the file to write (a-folder is a folder); name one in it"),
    ],
)
def test_bad_input_is_2(
    arguments: list[str],
    message: str,
    run_dir: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(run_dir)
    Path("a-file").touch()
    Path("run.toml").write_text("[train]\n")
    Path("trace.svg").write_text("<svg></svg>\n")
    Path("a-folder").mkdir(exist_ok=True)
    Path("a-link").symlink_to("trace/new.json")
    before = {path: path.stat().st_size for path in Path().rglob("*") if path.exists()}
    code, out, err = run(capsys, "trace", "export", ".", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert {path: path.stat().st_size for path in Path().rglob("*") if path.exists()} == before


def test_a_dash_is_stdout(run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run_dir)
    code, out, err = run(capsys, "trace", "export", ".", "-o", "-")
    assert (code, lint(out)) == (0, [])
    assert err.startswith("-: steps 2 to 11 of 2 ranks")
    assert not Path("-").exists()


def test_a_file_that_is_called_as_an_unfinished_one_stays(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = run_dir / "kept.json.partial"
    mine.write_text("mine")
    assert run(capsys, "trace", "export", str(run_dir), "-o", str(run_dir / "kept.json"))[0] == 0
    assert mine.read_text() == "mine"


def test_a_timeline_is_written_over(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "a.json"
    for steps in ("1:2", "3:4"):
        assert run(capsys, "trace", "export", str(run_dir), "-o", str(target), "--steps", steps)[0] == 0
    assert '"step 3"' in target.read_text()
