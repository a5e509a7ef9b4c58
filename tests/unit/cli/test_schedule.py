from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fullbore.costs.stage import StageCost
from fullbore.ir.recipe import Layout, Recipe
from fullbore.plan.recipe_file import write_recipe
from fullbore.schedules.registry import REGISTRY, get
from fullbore.synthesis.catalogue import CATALOGUE
from tests.unit.cli.test_main import run

KEYS = {
    *("name", "ranks", "chunks", "microbatches", "stages", "placement", "makespan", "ideal", "bubble_fraction"),
    *("span_bubble_fraction", "bubble_overhead", "peak_activations", "lower_bound", "orders"),
}


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = run(capsys, "schedule", "show", *arguments, "--json")
    assert (code, err) == (0, "")
    document: dict[str, Any] = json.loads(out)
    return document


KNOWN = {
    **{"gpipe": 33, "1f1b": 33, "eager-1f1b": 33, "interleaved-1f1b": 28.5, "looped-bfs": 28.5, "seq-1f1b": 28.5},
    **{"zb-1p": 27, "zb-2p": 27, "zb-v": 25.5, "v-half": 26.5, "v-min": 29.5, "1f1b-v": 31.5},
    **{"dualpipe-v": 27, "dualpipe": 26, "chimera": 30, "hanayo": 33},
}
"""Makespans at p = 4, m = 8 with unit costs; a schedule added later is held to its own formula."""

BEST = ("gpipe", "1f1b", "eager-1f1b", "interleaved-1f1b", "looped-bfs")
"""Known to reach the lower bound."""


@pytest.mark.parametrize("name", REGISTRY)
def test_the_json_has_the_promised_keys(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, name, "-p", "4", "-m", "8")
    entry = get(name)
    chunks = entry.chunks
    assert set(found) == KEYS
    makespan = KNOWN.get(name) or float(entry.span(entry.sizes(4, num_microbatches=8), StageCost(1, 1, 1)) or 0)
    assert (found["makespan"], found["ideal"], found["chunks"], found["stages"]) == (makespan, 24, chunks, 4 * chunks)
    assert found["lower_bound"] == makespan if name in BEST else found["lower_bound"] <= makespan
    assert found["bubble_fraction"] == pytest.approx(1 - 24 / makespan, abs=1e-12)
    assert found["bubble_overhead"] == pytest.approx(makespan / 24 - 1, abs=1e-12)
    assert found["placement"] == [[rank] for rank in entry.place(entry.sizes(4, num_microbatches=8)).ranks]
    assert found["orders"][3][:2] == (["3F0", "3B0"] if name == "1f1b" else found["orders"][3][:2])


@pytest.mark.parametrize(
    ("name", "sizes", "title"),
    [
        ("gpipe", "-p 2 -m 2", "2 ranks, 2 microbatches"),
        ("looped-bfs", "-p 2 -m 2 -v 3", "2 ranks, 2 microbatches, 3 stages per rank in a loop"),
        ("v-half", "-p 2 -m 2", "2 ranks, 2 microbatches, 2 stages per rank in a V"),
        ("hanayo", "-p 2 -m 2 --option waves=2", "2 ranks, 2 microbatches, 4 stages per rank"),
        ("chimera", "-p 2 -m 2", "2 ranks, 2 microbatches, 2 stages per rank"),
        ("v-half", "-p 1 -m 2", "1 rank, 2 microbatches, 2 stages per rank"),
        ("auto", "-p 2 -m 4 -v 2 --option snake=0", "2 ranks, 4 microbatches, 2 stages per rank in a loop"),
        ("auto", "-p 2 -m 4 -v 2 --option snake=1", "2 ranks, 4 microbatches, 2 stages per rank in a V"),
    ],
)
def test_the_title_says_how_several_stages_a_rank_lie(
    name: str, sizes: str, title: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "schedule", "show", name, *sizes.split())
    assert (code, out.splitlines()[0]) == (0, f"{name}: {title}")


def test_chunks_and_options_reach_the_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, "interleaved-1f1b", "-p", "4", "-m", "8", "-v", "4")
    assert (found["makespan"], found["stages"], found["peak_activations"][0]) == (26.25, 16, 4.75)
    sizes = ("-p", "4", "-m", "6", "--option", "group_size=6", "--option", "extra_warmup=1")
    assert shown(capsys, "interleaved-1f1b", *sizes)["peak_activations"] == [6, 6, 5, 4]
    assert shown(capsys, "1f1b", "-p", "4", "-m", "9", "--option", "extra_warmup=2")["peak_activations"] == [9, 7, 4, 1]


def test_a_chunk_costs_its_part_of_the_ranks_share(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, "looped-bfs", "-p", "2", "-m", "4", "-v", "3", "--cost", "1:2,1,1", "--comm", "0.25")
    assert (found["ideal"], found["chunks"]) == (16, 3)


def test_peaks_are_microbatch_shares(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "1f1b", "-p", "4", "-m", "8")["peak_activations"] == [4, 3, 2, 1]
    assert shown(capsys, "gpipe", "-p", "2", "-m", "8")["peak_activations"] == [8, 8]


def test_costs_and_delays_are_in_the_callers_unit(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, "1f1b", "-p", "2", "-m", "1", "--cost", "1,1.2,.8", "--comm", "0.25")
    assert found["makespan"] == 2 * (1 + 2) + 0.5
    uneven = shown(capsys, "1f1b", "-p", "2", "-m", "4", "--cost", "1:2,1,1")
    assert uneven["ideal"] == 16
    assert uneven["lower_bound"] == 1 + 16 + 2


def test_an_svg_is_drawn_beside_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "picture.svg"
    shown(capsys, "1f1b", "-p", "2", "-m", "2", "--svg", str(path))
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
    code, _, err = run(
        capsys, "schedule", "show", "1f1b", "-p", "2", "-m", "2", "--svg", str(tmp_path / "no" / "x.svg")
    )
    assert code == 2
    assert "cannot write the picture" in err


def test_above_the_memory_cap_the_answer_is_no(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("schedule", "show", "1f1b", "-p", "4", "-m", "8", "--memory-cap")
    code, out, err = run(capsys, *arguments, "3", "--json")
    assert code == 1
    assert err == "1f1b keeps 4 microbatch-shares on a rank, above the memory cap of 3\n"
    assert set(json.loads(out)) == KEYS
    assert run(capsys, *arguments, "4")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1fb1", "-p", "2", "-m", "2"], "did you mean '1f1b'?"),
        (["zb-h2", "-p", "4", "-m", "6"], "at least 2 num_ranks - 1 (num_microbatches=6, num_ranks=4); use 7"),
        (["dualpipe", "-p", "3", "-m", "6"], "needs an even number of ranks (num_ranks=3); use 2 or 4"),
        (["dualpipe", "-p", "2", "-m", "4", "--comm", "1:1:1"], "one value for each boundary, 1 of them"),
        (
            ["seq-1f1b", "-p", "2", "-m", "4", "--option", "slices=0"],
            "slices of seq-1f1b is a whole number of at least 1",
        ),
        (
            ["seq-1f1b", "-p", "2", "-m", "2", "--option", "slices=999999999"],
            "2 ranks, 1 chunks and 2 microbatches, each in 999999999 slices, has more than 1,000,000 forwards",
        ),
        (
            ["1f1b", "-p", "4", "-m", "250001"],
            "4 ranks, 1 chunks and 250001 microbatches has more than 1,000,000 forwards",
        ),
        (["1f1b", "-p", "4097", "-m", "1"], "a schedule has at most 4,096 ranks (num_ranks=4097); use fewer"),
        (["hanayo", "-p", "2", "-m", "2", "--option", "waves=999999999"], "has more than 1,000,000 forwards"),
        (["1f1b", "-p", "2", "-m", "2", "--input-backward-frees", "nan"], "--input-backward-frees is a number"),
        (["auto", "-p", "2", "-m", "2", "--optimal", "nan"], "--optimal is a number (given nan)"),
        (["1f1b", "-p", "0", "-m", "2"], "num_ranks=0"),
        (["1f1b", "-p", "2", "-m", "2", "-v", "2"], "1f1b has 1 stage per rank (num_chunks=2); use 1"),
        (["1f1b", "-p", "2"], "needs -p RANKS and -m MICROBATCHES, or --recipe FILE; for example -p 4 -m 8"),
        (["1f1b", "-p", "2", "-m", "2", "--option", "waves=2"], "1f1b has no option 'waves'; it takes extra_warmup"),
        (["1f1b", "-p", "2", "-m", "2", "--option", "waves"], "an option is written key=value"),
        (["1f1b", "-p", "2", "-m", "2", "--option", "extra_warmup=1.5"], "with a whole number (given --option 'extra"),
        (["interleaved-1f1b", "-p", "2", "-m", "3"], "(num_microbatches=3, num_ranks=2); use 2 or 4; or group_size=3"),
        (["interleaved-1f1b", "-p", "2", "-m", "2", "-v", "0"], "needs num_chunks of at least 1 (num_chunks=0)"),
        (["1f1b", "-p", "2", "-m", "2", "--cost", "1,1"], "forward, backward for the input, backward for the weights"),
        (["1f1b", "-p", "2", "-m", "2", "--recipe", "none.json"], "cannot read the recipe none.json"),
    ],
)
def test_bad_input_is_one_message_and_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "schedule", "show", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("fullbore: ")
    assert err.count("\n") == 1


def test_a_recipe_that_recomputes_ahead_is_drawn_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = Recipe(Layout(pipeline=2), 1, 2, (1, 1), "1f1b", recompute=("a",), recompute_ahead=True)
    write_recipe(tmp_path / "recipe.json", recipe, stage_costs=[StageCost(10, 10, 0, 10), StageCost(10, 10, 0, 0)])
    found = shown(capsys, "1f1b", "--recipe", str(tmp_path / "recipe.json"))
    assert found["orders"][0] == ["0F0", "0F1", "0R0", "0B0", "0R1", "0B1"]
    assert found["orders"][1] == ["1F0", "1B0", "1F1", "1B1"]
    assert found["makespan"] == 60


def test_a_comparison_refuses_what_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "schedule", "compare", "-p", "2", "-m", "2", "--input-backward-frees", "nan")
    assert (code, out, err) == (2, "", "fullbore: --input-backward-frees is a number (given nan)\n")


def test_a_recipe_gives_the_sizes_and_uneven_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = Recipe(Layout(pipeline=2), 1, 4, (1, 3), "1f1b")
    bare, measured = tmp_path / "bare.json", tmp_path / "measured.json"
    write_recipe(bare, recipe)
    write_recipe(measured, recipe, stage_costs=[StageCost(10, 10, 10), StageCost(20, 20, 20)])
    assert shown(capsys, "gpipe", "--recipe", str(bare))["ideal"] == 4 * 9
    code, out, _ = run(capsys, "schedule", "show", "1f1b", "--recipe", str(measured))
    assert code == 0
    assert "ms" in out
    code, _, err = run(capsys, "schedule", "show", "1f1b", "--recipe", str(bare), "-m", "5")
    assert (code, err) == (2, "fullbore: -m 5 contradicts the recipe, which has 4; leave out one of them\n")
    code, _, err = run(capsys, "schedule", "show", "1f1b", "--recipe", str(measured), "--comm", "1")
    assert code == 2
    assert "--comm has no unit beside the recipe's nanoseconds" in err


def test_a_recipe_brings_its_chunks_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "recipe.json"
    options = {"group_size": 3, "extra_warmup": 0}
    write_recipe(path, Recipe(Layout(2, 2), 1, 3, (1, 2, 2, 1), "interleaved-1f1b", schedule_options=options))
    found = shown(capsys, "interleaved-1f1b", "--recipe", str(path))
    assert (found["stages"], found["microbatches"], found["ideal"]) == (4, 3, 3 * 4.5)
    assert shown(capsys, "looped-bfs", "--recipe", str(path))["name"] == "looped-bfs"
    code, _, err = run(capsys, "schedule", "show", "interleaved-1f1b", "--recipe", str(path), "-v", "3")
    assert (code, err) == (2, "fullbore: -v 3 contradicts the recipe, which has 2; leave out one of them\n")


def test_a_recipe_brings_the_cap_that_it_was_made_under(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "recipe.json")
    options = {"snake": 0}
    write_recipe(
        tmp_path / "recipe.json",
        Recipe(Layout(pipeline=4), 1, 12, (1, 1, 1, 1), "auto", schedule_options=options, memory_cap=2),
    )
    assert max(shown(capsys, "auto", "--recipe", path)["peak_activations"]) == 2
    assert max(shown(capsys, "auto", "--recipe", path, "--memory-cap", "4")["peak_activations"]) == 4
    assert max(shown(capsys, "1f1b", "--recipe", path)["peak_activations"]) == 4
    write_recipe(tmp_path / "recipe.json", Recipe(Layout(pipeline=2), 1, 4, (1, 1), "gpipe", memory_cap=2))
    code, _, err = run(capsys, "schedule", "show", "gpipe", "--recipe", path)
    assert (code, err) == (1, "gpipe keeps 4 microbatch-shares on a rank, above the memory cap of 2\n")


def test_the_list_names_papers_and_constraints(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "schedule", "list", "--json")
    assert code == 0
    entries = json.loads(out)["schedules"]
    assert [entry["name"] for entry in entries] == list(CATALOGUE)
    assert all(entry["paper"] and entry["constraints"] and entry["summary"] for entry in entries)
    interleaved = entries[list(CATALOGUE).index("interleaved-1f1b")]
    assert (interleaved["chunks"], interleaved["takes_chunks"]) == (2, True)
    assert [option["name"] for option in interleaved["options"]] == ["group_size", "extra_warmup"]
    _, out, _ = run(capsys, "schedule", "list")
    assert "-v: any number of stages per rank, 2 by default" in out
    assert "--option group_size=0: microbatches that" in out


def test_the_backward_for_the_input_may_free_a_part(capsys: pytest.CaptureFixture[str]) -> None:
    """Peaks are smaller, and what is made for a cap has more room."""
    sizes = ("-p", "4", "-m", "16")
    assert shown(capsys, "zb-h2", *sizes, "--input-backward-frees", "0.5")["peak_activations"] == [7, 6, 5, 4]
    assert shown(capsys, "zb-h2", *sizes)["peak_activations"] == [7, 7, 7, 7]
    tight = ("zb-2p", *sizes, "--cost", "2,2,1", "--memory-cap", "6")
    assert shown(capsys, *tight, "--input-backward-frees", "0.5")["makespan"] < shown(capsys, *tight)["makespan"]
    code, out, err = run(capsys, "schedule", "show", "zb-h2", *sizes, "--input-backward-frees", "2")
    assert (code, out) == (2, "")
    assert "--input-backward-frees is a share, 0 to 1 (given 2)" in err
