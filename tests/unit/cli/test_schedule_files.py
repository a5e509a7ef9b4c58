"""`fullbore schedule check`, `export` and `compare`."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from fullbore import bounded_file
from fullbore.ir.recipe import Layout, Recipe
from fullbore.ir.schedule_file import read_schedule_file
from fullbore.ir.torch_lower import with_transfers
from fullbore.plan.recipe_file import write_recipe
from fullbore.schedules.one_forward_one_backward import one_forward_one_backward
from fullbore.synthesis.catalogue import CATALOGUE
from tests.golden.regenerate_cli import INPUTS
from tests.unit.cli.test_main import run
from tests.unit.cli.test_schedule import KEYS


def checked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = run(capsys, "schedule", "check", *arguments, "--json")
    document: dict[str, Any] = json.loads(out)
    return code, document


def test_an_invalid_schedule_is_1_and_names_rule_cell_and_column(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = checked(capsys, str(INPUTS / "torch-1f1b.csv"))
    assert (code, found["valid"]) == (1, False)
    assert found["problems"] == [
        {
            "rule": "known-microbatch",
            "rank": 2,
            "position": 6,
            "action": "2F4",
            "message": "2F4 on rank 2: microbatches are 0 to 3",
            "column": 7,
        },
        {
            "rule": "complete",
            "rank": 2,
            "position": None,
            "action": "2F0",
            "message": "2F0 is missing on rank 2",
            "column": None,
        },
    ]
    code, out, err = run(capsys, "schedule", "check", str(INPUTS / "torch-1f1b.csv"))
    assert code == 1
    assert "[2F4]" in out
    assert err.endswith("torch-1f1b.csv breaks known-microbatch, complete\n")


def test_columns_count_what_was_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.csv"
    path.write_text("0UNSHARD,0F0,0B0,0F1,0B1,0REDUCE_GRAD\n,1F0,1B0,1F1,1F1,1B1\n")
    code, found = checked(capsys, str(path))
    assert code == 1
    assert [(p["rule"], p["rank"], p["position"], p["column"]) for p in found["problems"]] == [("once", 1, 3, 5)]
    assert found["notes"][0].startswith("dropped 1 empty cells")


def test_a_wait_cycle_is_found_only_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(INPUTS / "blocking.csv")
    assert checked(capsys, path) == (0, checked(capsys, path)[1])
    code, found = checked(capsys, path, "--blocking")
    assert code == 1
    (problem,) = found["problems"]
    assert (problem["rule"], problem["rank"], problem["position"]) == ("no-wait-cycle", 0, 3)
    assert "0SEND_F1" in problem["message"]
    assert "1SEND_B0" in problem["message"]
    assert checked(capsys, str(INPUTS / "torch-zbv.csv"), "--blocking")[0] == 0


def test_a_file_without_communication_is_checked_as_fullbore_places_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, lowered = tmp_path / "plain.csv", tmp_path / "lowered.csv"
    assert run(capsys, "schedule", "export", "1f1b", "-p", "4", "-m", "8", "--csv", str(plain))[0] == 0
    code, found = checked(capsys, str(plain), "--blocking")
    assert (code, found["problems"][0]["rule"], found["problems"][0]["column"]) == (1, "no-wait-cycle", None)
    assert run(capsys, "schedule", "export", str(plain), "--csv", str(lowered), "--communication")[0] == 0
    assert checked(capsys, str(lowered), "--blocking")[0] == 0


@pytest.mark.parametrize(
    ("bound", "code", "message"),
    [
        ("4:3:2:1", 0, ""),
        ("4", 0, ""),
        ("3", 1, "breaks in-flight"),
        ("4:3:1:1", 1, "breaks in-flight"),
        ("4:3", 2, "one for each of the 4 ranks (given 2)"),
        ("-1", 2, "--in-flight takes whole numbers"),
    ],
)
def test_a_bound_on_what_is_in_flight(
    bound: str, code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "1f1b.txt")
    run(capsys, "schedule", "export", "1f1b", "-p", "4", "-m", "8", "--text", path)
    found, _, err = run(capsys, "schedule", "check", path, "--in-flight", bound)
    assert found == code
    assert message in err


def test_what_cannot_be_read_is_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.csv"
    path.write_text("0F0,0B0\n1F0abc,1B0\n")
    code, out, err = run(capsys, "schedule", "check", str(path))
    assert (code, out) == (2, "")
    assert f"{path}, row 2, column 1: a cell is stage, kind, microbatch" in err
    code, _, err = run(capsys, "schedule", "check", str(tmp_path / "none.csv"))
    assert code == 2
    assert "cannot read the schedule" in err


def test_a_device_and_a_file_without_end_are_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "schedule", "check", "/dev/zero")
    assert (code, out, err) == (2, "", "fullbore: cannot read the schedule /dev/zero: it is a device and not a file\n")
    huge = tmp_path / "huge.csv"
    with huge.open("wb") as file:
        file.truncate(bounded_file.MOST_BYTES + 1)
    code, _, err = run(capsys, "schedule", "check", str(huge))
    assert (code, err) == (2, f"fullbore: cannot read the schedule {huge}: it is larger than 256 MiB\n")


def test_a_pipe_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"0F0,0B0\n",))
    writer.start()
    assert run(capsys, "schedule", "check", str(pipe))[0] == 0
    writer.join()


@pytest.mark.parametrize("microbatches", ["2", "3"])
def test_one_rank_is_told_the_one_number_that_would_do(microbatches: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "schedule", "compare", "-p", "1", "-m", microbatches)
    assert code == 0
    assert "chimera: chimera needs an even number of ranks (num_ranks=1); use 2\n" in out
    assert "2 or 2" not in out


def test_an_export_is_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    csv, text = tmp_path / "1f1b.csv", tmp_path / "again.txt"
    code, out, err = run(
        capsys, "schedule", "export", "1f1b", "-p", "3", "-m", "4", "--csv", str(csv), "--communication", "--json"
    )
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        **{"name": "1f1b", "ranks": 3, "stages": 3, "microbatches": 4},
        **{"communication": True, "csv": str(csv)},
    }
    schedule = one_forward_one_backward(3, num_microbatches=4)
    assert read_schedule_file(csv) == with_transfers(schedule)
    assert run(capsys, "schedule", "export", str(csv), "--text", str(text))[0] == 0
    assert read_schedule_file(text) == schedule


def test_show_writes_a_csv_beside_its_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gpipe.csv"
    code, out, _ = run(capsys, "schedule", "show", "gpipe", "-p", "2", "-m", "2", "--csv", str(path), "--json")
    assert (code, set(json.loads(out))) == (0, KEYS)
    assert path.read_bytes() == b"0F0,0F1,0B0,0B1\r\n1F0,1F1,1B0,1B1\r\n"


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_file_is_shown_as_the_schedule_that_it_holds(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, sizes, costs = (
        str(tmp_path / "order.txt"),
        ("-p", "4", "-m", "8"),
        ("--cost", "1:2:1:3,1,1.5", "--comm", ".5"),
    )
    assert run(capsys, "schedule", "export", name, *sizes, *costs, "--text", path)[0] == 0
    by_name = run(capsys, "schedule", "show", name, *sizes, *costs)
    assert run(capsys, "schedule", "show", path, *costs) == by_name
    assert by_name[0] == 0


def test_an_imported_csv_is_drawn_and_keeps_to_a_cap(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(INPUTS / "torch-zbv.csv")
    code, out, err = run(capsys, "schedule", "show", path, "--memory-cap", "1")
    assert code == 1
    assert out.startswith("torch-zbv: 2 ranks, 4 microbatches, 2 stages per rank in a V")
    assert err.endswith("keeps 2 microbatch-shares on a rank, above the memory cap of 1\n")


def test_a_csv_is_called_by_what_can_be_printed_of_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my\x1b[31m  order\x01.csv"
    path.write_bytes((INPUTS / "torch-zbv.csv").read_bytes())
    code, out, _ = run(capsys, "schedule", "show", str(path))
    assert (code, out.partition(":")[0]) == (0, "my[31m order")


def test_a_recipe_caps_its_file_however_that_is_spelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file without a suffix is one too, where it is there."""
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "schedule", "export", "gpipe", "-p", "2", "-m", "3", "--text", "order")[0] == 0
    write_recipe(Path("recipe.json"), Recipe(Layout(2), 1, 3, (1, 1), "./order", memory_cap=2.0))
    for name in ("order", "./order", str(tmp_path / "order")):
        code, _, err = run(capsys, "schedule", "show", name, "--recipe", "recipe.json")
        assert (code, "above the memory cap of 2" in err) == (1, True), name
    code, _, err = run(capsys, "schedule", "show", "seq-1f1b", "--recipe", "recipe.json")
    assert (code, "seq-1f1b cuts their sequences into 2 slices; leave out --recipe" in err) == (2, True)


@pytest.mark.parametrize(
    ("lines", "arguments", "message"),
    [
        (("0 1", "0F0 0B0", "1F0 1B0"), ["-p", "2", "--option", "a=1"], "and its order; leave out -p, --option"),
        (("0 1", "0F0 0B0", "1F0 1B0"), ["--optimal", "1"], "and its order; leave out --optimal"),
        (("0 1", "0F0 0B0", "1F0 1B0"), ["--csv", "order.txt"], "NAME and --csv are one file"),
        (
            ("0 1", "0F0 0B0", "1F0 1B0"),
            ["--recipe", "3-1-1.json", "--csv", "3-1-1.json"],
            "--recipe and --csv are one",
        ),
        (("0 1", "0F0 0B0", "1F0 1B0"), ["--recipe", "2-1-3.json"], "has 1 microbatches, and the recipe 3; leave out"),
        (("0 1", "0F0 0B0", "1F0 1B0"), ["--recipe", "3-1-1.json"], "has 2 ranks, and the recipe 3; leave out"),
        (("0 1", "0F0 0B0", "1F0 1B0"), ["--recipe", "2-2-1.json"], "has 1 stages a rank, and the recipe 2; leave"),
        (("0 1", "0F0 0F0 0B0", "1F0 1B0"), [], "0F0 on rank 0 is there twice"),
        (("0 0 1", "0F0 1F0 1B0 0B0", "2F0 2B0"), [], "has 2, 1 stages on its ranks, and costs are those of a rank's"),
        (("0 1", "0B0 0F0", "1F0 1B0"), [], "0B0"),
    ],
)
def test_a_file_that_cannot_be_shown(
    lines: tuple[str, str, str],
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for ranks, chunks, microbatches in ((2, 1, 3), (3, 1, 1), (2, 2, 1)):
        recipe = Recipe(Layout(ranks, chunks), 1, microbatches, (1,) * (ranks * chunks), "1f1b")
        write_recipe(Path(f"{ranks}-{chunks}-{microbatches}.json"), recipe)
    placement, first, second = lines
    Path("order.txt").write_text(
        f"fullbore schedule 1\nname odd\nplacement {placement}\nmicrobatches 1\nrank 0: {first}\nrank 1: {second}\n"
    )
    code, out, err = run(capsys, "schedule", "show", "order.txt", *arguments)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1f1b", "-p", "2", "-m", "2"], "needs --csv FILE, --text FILE or both"),
        (["1f1b", "-p", "2", "-m", "2", "--text", "-", "--communication"], "--communication is for a CSV"),
        (
            ["1f1b", "-p", "2", "-m", "2", "--csv", "-", "--json"],
            "--json and --csv - would both write to stdout; give the schedule a file",
        ),
        (["1f1b", "-p", "2", "-m", "2", "--csv", "x", "--text", "./x"], "--csv and --text are one file, x; name two"),
        (["1f1b", "-p", "2", "-m", "2", "--csv", "-", "--text", "-"], "--csv and --text are one file, -; name two"),
        (["auto", "-p", "2", "-m", "2", "--csv", "-", "--optimal", "-3"], "number of seconds above 0 (given -3)"),
        (["auto", "-p", "2", "-m", "2", "--csv", "-", "--option", "snake=7"], "snake of auto is 0 or 1 (given 7)"),
        (["1f1b", "--csv", "-"], "1f1b needs -p RANKS and -m MICROBATCHES"),
        (["1fb", "--csv", "-"], "did you mean '1f1b'?"),
        (["none.csv", "--csv", "-"], "cannot read the schedule none.csv"),
        (["./none", "--csv", "-"], "cannot read the schedule none: No such file"),
        ([str(INPUTS / "torch-zbv.csv"), "-p", "2", "--csv", "-"], "is a file and has its sizes"),
        ([str(INPUTS / "broken.csv"), "--csv", "-"], "own-forward-first"),
        (["1f1b", "-p", "2", "-m", "2", "--csv", "/no/such/folder/x.csv"], "cannot write the schedule"),
        (["1f1b", "-p", "2", "-m", "2", "--option", "waves=2", "--csv", "-"], "waves"),
    ],
)
def test_bad_input_of_an_export_is_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "schedule", "export", *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_above_the_memory_cap_nothing_is_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "order.csv"
    arguments = ("schedule", "export", "gpipe", "-p", "4", "-m", "8", "--csv", str(path), "--memory-cap")
    code, out, err = run(capsys, *arguments, "4")
    assert (code, out) == (1, "")
    assert err == "gpipe keeps 8 microbatch-shares on a rank, above the memory cap of 4; nothing is written\n"
    code, out, _ = run(capsys, *arguments, "4", "--json")
    assert (code, "csv" in json.loads(out), path.exists()) == (1, False, False)
    assert run(capsys, *arguments, "8")[0] == 0
    assert path.exists()


def compared(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = run(capsys, "schedule", "compare", *arguments, "--json")
    assert (code, err) == (0, "")
    document: dict[str, Any] = json.loads(out)
    return document


def test_a_comparison_has_every_schedule_fastest_first(capsys: pytest.CaptureFixture[str]) -> None:
    found = compared(capsys, "-p", "4", "-m", "8", "--cost", "1,1.2,.8")
    assert {row["name"] for row in found["rows"]} | {one["name"] for one in found["left_out"]} == set(CATALOGUE)
    assert all(set(row) == KEYS - {"orders"} for row in found["rows"])
    keys = [
        (row["makespan"], row["name"] != "auto", max(row["peak_activations"]), row["name"]) for row in found["rows"]
    ]
    assert keys == sorted(keys)
    for row in found["rows"]:
        code, out, _ = run(
            capsys, *["schedule", "show", row["name"], "-p", "4", "-m", "8", "--cost", "1,1.2,.8", "--json"]
        )
        shown = json.loads(out)
        del shown["orders"]
        assert (code, row) == (0, shown)


def test_what_does_not_fit_is_listed_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    found = compared(capsys, "-p", "4", "-m", "6", "--memory-cap", "4")
    reasons = {one["name"]: one["reason"] for one in found["left_out"]}
    assert reasons["gpipe"] == "keeps 6 microbatch-shares on a rank, above the memory cap of 4"
    assert "divisible" in reasons["interleaved-1f1b"]
    assert "1f1b" in [row["name"] for row in found["rows"]]
    assert all(max(row["peak_activations"]) <= 4 for row in found["rows"])
    chunks = compared(capsys, "-p", "2", "-m", "4", "-v", "2", "--comm", "1:2:3")
    assert {row["chunks"] for row in chunks["rows"]} == {2}
    assert "num_chunks=2" in {one["name"]: one["reason"] for one in chunks["left_out"]}["1f1b"]
    lists = compared(capsys, "-p", "2", "-m", "4", "--comm", "1:2:3")
    assert "one value for each boundary, 1 of them" in {o["name"]: o["reason"] for o in lists["left_out"]}["1f1b"]


def test_nothing_that_fits_is_1_and_bad_input_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "schedule", "compare", "-p", "4", "-m", "8", "--memory-cap", "0.5", "--json")
    assert (code, json.loads(out)["rows"]) == (1, [])
    assert err.startswith("no schedule fits 4 ranks and 8 microbatches:\n  gpipe: keeps 8")
    for arguments in (["-p", "0", "-m", "8"], ["-p", "2", "-m", "2", "--comm", "x"], ["-p", "2", "-m", "2", "-v", "0"]):
        code, out, err = run(capsys, "schedule", "compare", *arguments)
        assert (code, out) == (2, "")
        assert err.startswith("fullbore: ")


@pytest.mark.parametrize(
    ("sizes", "forwards"),
    [(("-p", "4", "-m", "100000"), "400,000"), (("-p", "1000000000", "-m", "1"), "1,000,000,000")],
)
def test_a_comparison_that_would_take_hours_is_refused_at_once(
    sizes: tuple[str, ...], forwards: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A billion ranks came to a list of a billion costs."""
    code, out, err = run(capsys, "schedule", "compare", *sizes)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"1 chunks have {forwards}); use fewer microbatches, or look at one schedule with" in err
