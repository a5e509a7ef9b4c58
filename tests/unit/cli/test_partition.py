from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fullbore.cli.run_options import read_config
from fullbore.costs.layer import LayerCost, write_costs
from fullbore.costs.stage import StageCost
from fullbore.costs.streams import stages_over
from fullbore.errors import ConfigError
from fullbore.ids import StageIndex
from fullbore.ir.recipe import Layout, Recipe
from fullbore.ir.schedule_file import write_schedule_file
from fullbore.ir.torch_write import format_torch_csv
from fullbore.plan.check import check_before_start
from fullbore.plan.recipe_file import read_recipe, recipe_document, write_recipe
from fullbore.schedules.recompute_ahead import recompute_ahead
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from fullbore.timeline.clock import ClockOffset
from fullbore.timeline.shift import shifted
from fullbore.trace.writer import TraceWriter
from tests.unit.cli.test_main import run

LAYERS = [LayerCost(f"layer{i}", 1_000_000, 1_000_000, 1_000_000, activation_bytes=1 << 20) for i in range(5)]


@pytest.fixture
def costs(tmp_path: Path) -> str:
    write_costs(tmp_path / "profile.json", LAYERS)
    return str(tmp_path / "profile.json")


def test_the_json_has_the_promised_keys(costs: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "partition", costs, "-p", "4", "-m", "8", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert set(found) == {
        *("boundaries", "layers_per_stage", "stage_time_ns", "bottleneck_stage", "bottleneck_ns", "imbalance"),
        *("stage_memory_bytes", "makespan_ns", "objective", "reason"),
        *("balance", "speedup", "rank_time_ns", "rank_memory_bytes", "stage_parameters"),
    }
    assert found["layers_per_stage"] == [2, 1, 1, 1]
    assert found["boundaries"] == [0, 2, 3, 4]
    assert found["makespan_ns"] == 8 * 6_000_000 + 3_000_000
    assert found["stage_memory_bytes"] == [8 << 20, 3 << 20, 2 << 20, 1 << 20]


def test_a_run_folder_holds_its_profile(costs: str, capsys: pytest.CaptureFixture[str]) -> None:
    by_folder = run(capsys, "partition", str(Path(costs).parent), "-p", "2")
    assert by_folder == run(capsys, "partition", costs, "-p", "2")
    assert "one step takes 75.00 ms (1f1b, 8 microbatches, free links)" in by_folder[1]
    assert "    0       3         9.00 ms     1.20       6.0 MiB  layer0 to layer2" in by_folder[1]


def test_a_recipe_is_written_that_show_can_draw(costs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.json"
    assert run(capsys, "partition", costs, "-p", "2", "-o", str(recipe))[0] == 0
    assert read_recipe(recipe).recipe.layers_per_stage == (3, 2)
    code, out, _ = run(capsys, "schedule", "show", "1f1b", "--recipe", str(recipe), "--json")
    assert code == 0
    assert json.loads(out)["makespan"] == 75_000_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "6"], "6 stages are too many for 5 layers (-p 6, -v 1); use at most -p 5\n"),
        (
            ["-p", "2", "-v", "3", "--schedule", "interleaved-1f1b"],
            "6 stages are too many for 5 layers (-p 2, -v 3); use at most -p 1 or -v 2\n",
        ),
        (["-p", "0"], "fullbore: -p is a number of ranks, at least 1 (given -p 0)\n"),
        (["-p", "2", "-v", "0"], "fullbore: -v is a number of stages a rank, at least 1 (given -v 0)\n"),
        (["-p", "2", "-m", "0"], "fullbore: -m is a number of microbatches, at least 1 (given -m 0)\n"),
        (["-p", "2", "--memory", "lots"], "a size is a number of bytes, or one with a unit such as 80GiB"),
        (["-p", "2", "--memory", "9" * 400], f"such as 80GiB (given '{'9' * 169}...{'9' * 29}')"),
        (["-p", "2", "--memory", "1." + "9" * 5000 + "GiB"], f"such as 80GiB (given '1.{'9' * 167}...{'9' * 26}GiB')"),
        (["-p", "2", "-v", "2"], "1f1b has 1 stage per rank (num_chunks=2); use 1"),
        (["-p", "2", "--schedule", "1fb1"], "did you mean '1f1b'"),
    ],
)
def test_bad_input_is_2(arguments: list[str], message: str, costs: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "partition", costs, *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_nothing_within_memory_is_a_no_with_the_nearest_limit(costs: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "partition", costs, "-p", "2", "--memory", "2MiB")
    assert (code, out) == (1, "")
    assert "keeps every stage within 2097152 bytes; the least that has one is 4194304 bytes (4.0 MiB)" in err
    assert run(capsys, "partition", costs, "-p", "2", "--memory", "4MiB")[0] == 0


def test_chunks_are_weighed_by_rank(costs: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("partition", costs, "-p", "2", "-v", "2", "-m", "4", "--schedule", "interleaved-1f1b")
    code, out, _ = run(capsys, *arguments, "--json")
    found = json.loads(out)
    assert code == 0
    assert len(found["layers_per_stage"]) == 4
    assert sorted(found["rank_time_ns"]) == [6_000_000, 9_000_000]
    assert found["speedup"] == pytest.approx(15 / 9)
    assert "rank 0 has the most work; ranks need up to" in run(capsys, *arguments)[1]


def traced(folder: Path, *, slow_stage: int, name: str = "1f1b") -> None:
    """A run of the five layers as 3 and 2, in which one stage took twice what the profile says, and its mirror too."""
    schedule = get(name).build(2, num_microbatches=6)
    streams = schedule.placement.num_streams
    recipe = Recipe(Layout(2, streams, streams=streams), 2, 6, (3, 2), name)
    write_recipe(folder / "plan.json", recipe)
    costs = [StageCost(3_000_000, 3_000_000, 3_000_000), StageCost(2_000_000, 2_000_000, 2_000_000)]
    slow = costs[slow_stage]
    costs[slow_stage] = StageCost(2 * slow.forward, 2 * slow.backward_input, 2 * slow.backward_weight)
    step = simulate(schedule, costs=stages_over(costs, schedule.placement))
    for rank in range(2):
        clock = ClockOffset(0, 0)
        with TraceWriter(folder, rank=rank, placement=schedule.placement, schedule=name, clock=clock) as writer:
            for number in range(3):
                for span in shifted(step, by_ns=number * 10**9).spans:
                    if span.rank == rank:
                        writer.record(span)
                writer.step_ended(number)


def test_a_run_corrects_its_profile(costs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the profile 3 and 2 are best; the run says that its first three layers take twice as long."""
    traced(tmp_path, slow_stage=0)
    code, out, _ = run(capsys, "partition", str(tmp_path), "-p", "2", "-o", str(tmp_path / "next.json"), "--json")
    found = json.loads(out)
    assert code == 0
    assert found["layers_per_stage"] == [2, 3]
    assert found["stage_time_ns"] == [12_000_000, 12_000_000]
    assert found["reason"] == (
        "all stages take the same time; layer costs are those of the profile, rescaled to what the stages took in "
        "2 steps of the run (times 2.00, 1.00 in stages 0 to 1)"
    )
    recipe = read_recipe(tmp_path / "next.json").recipe
    assert (recipe.microbatches, recipe.microbatch_size, recipe.schedule) == (6, 2, "1f1b")


@pytest.mark.parametrize(("asked", "options"), [((), {"extra_warmup": 2}), (("--schedule", "gpipe"), {})])
def test_a_run_keeps_the_options_of_its_schedule(
    asked: tuple[str, ...],
    options: dict[str, int],
    costs: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its own schedule is cut for, and written, as it ran; another schedule has other options."""
    write_recipe(tmp_path / "plan.json", Recipe(Layout(2), 2, 6, (3, 2), "1f1b", schedule_options={"extra_warmup": 2}))
    next_file = tmp_path / "next.json"
    code, out, _ = run(capsys, "partition", str(Path(costs).parent), "-p", "2", *asked, "-o", str(next_file), "--json")
    assert code == 0
    assert read_recipe(next_file).recipe.schedule_options == options
    kept = [stage >> 20 for stage in json.loads(out)["stage_memory_bytes"]]
    assert kept == ([3 * 4, 2 * 1] if options else [3 * 6, 2 * 6])


def test_a_run_from_a_file_is_cut_for_what_the_file_says(
    costs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where that cannot be, the message says what can."""
    order, folder = tmp_path / "order.csv", str(Path(costs).parent)
    order.write_text(format_torch_csv(get("gpipe").build(2, num_microbatches=6)), encoding="utf-8")
    write_recipe(tmp_path / "plan.json", Recipe(Layout(2), 2, 6, (3, 2), str(order)))
    next_file = tmp_path / "next.json"
    code, out, _ = run(capsys, "partition", folder, "-p", "2", "-o", str(next_file), "--json")
    assert code == 0
    assert [stage >> 20 for stage in json.loads(out)["stage_memory_bytes"]] == [3 * 6, 2 * 6]
    assert read_recipe(next_file).recipe.schedule == str(order)
    advice = "give --schedule NAME, or the sizes of the run"
    for sizes, problem in ((("-p", "4"), "has 2 stages"), (("-p", "2", "-m", "8"), "has 6 microbatches")):
        code, _, err = run(capsys, "partition", folder, *sizes)
        assert (code, problem in err, advice in err) == (2, True, True)
    assert run(capsys, "partition", folder, "-p", "4", "--schedule", "1f1b")[0] == 0
    order.unlink()
    code, _, err = run(capsys, "partition", folder, "-p", "2")
    assert code == 2
    assert (
        f"the run took its order from a file, which cannot be used here; {advice}: cannot read the schedule {order}"
        in err
    )
    copy = tmp_path / "schedule.txt"
    write_schedule_file(copy, get("gpipe").build(2, num_microbatches=6))
    assert run(capsys, "partition", folder, "-p", "2", "-o", str(next_file))[0] == 0, "the run has its own copy"
    assert read_recipe(next_file).recipe.schedule == str(copy)


@pytest.mark.parametrize("kept", [True, False])
def test_a_recipe_whose_schedule_is_a_file_runs_from_any_folder(
    kept: bool, costs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It named the file as the run did, from the folder that the run was started in. With the run's own copy the file
    itself is not needed."""
    folder, elsewhere = tmp_path / "there", tmp_path / "elsewhere"
    (folder / "run").mkdir(parents=True)
    elsewhere.mkdir()
    monkeypatch.chdir(folder)
    Path(costs).rename("run/profile.json")
    schedule = get("gpipe").build(2, num_microbatches=6)
    order = "run/schedule.txt" if kept else "order.txt"
    write_schedule_file(Path(order), schedule)
    ran = recipe_document(Recipe(Layout(2), 2, 6, (3, 2), "order.txt"))
    Path("run/plan.json").write_text(json.dumps(ran))
    assert run(capsys, "partition", "run", "-p", "2", "-o", "recipe.json")[0] == 0
    assert run(capsys, "partition", "run", "-p", "2", "--schedule", "./order.txt")[0] == (2 if kept else 0)
    monkeypatch.chdir(elsewhere)
    config = read_config(None, recipe=folder / "recipe.json", overrides=())
    assert config.pipeline.schedule == str(folder / order)
    check_before_start(config)
    spelled = f"pipeline.schedule=../there/{order}"
    assert read_config(None, recipe=folder / "recipe.json", overrides=(spelled,)) == config
    (folder / order).unlink()
    said = (
        f"recipe\\.json takes its order from {folder / order}, which is not there; write into the recipe, as its sched"
    )
    with pytest.raises(ConfigError, match=said):
        read_config(None, recipe=folder / "recipe.json", overrides=())


def test_a_run_from_a_file_keeps_its_cap_and_its_recomputations_ahead(
    costs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its copy has them in the stages of the old cut; in the new one they follow the layers."""
    order, folder, next_file = tmp_path / "order.txt", str(Path(costs).parent), tmp_path / "next.json"
    schedule = get("1f1b").build(2, num_microbatches=6)
    write_schedule_file(order, schedule)
    write_schedule_file(tmp_path / "schedule.txt", recompute_ahead(schedule, stages=[StageIndex(0)]))
    ran = Recipe(Layout(2), 2, 6, (3, 2), str(order), recompute=("layer4",), recompute_ahead=True, memory_cap=3.0)
    write_recipe(tmp_path / "plan.json", ran)
    for asked in ((), ("--schedule", str(order)), ("--schedule", f"{tmp_path}/./order.txt")):
        code, _, err = run(capsys, "partition", folder, "-p", "2", *asked, "-o", str(next_file))
        assert code == 0, err
        found = read_recipe(next_file).recipe
        assert (found.recompute, found.recompute_ahead, found.memory_cap) == (("layer4",), True, 3.0)
    found = run(capsys, "partition", folder, "-p", "2", "--json")
    (tmp_path / "schedule.txt").rename(tmp_path / "aside.txt")
    assert run(capsys, "partition", folder, "-p", "2", "--json") == found, "as from the file without Rs"
    (tmp_path / "aside.txt").rename(tmp_path / "schedule.txt")
    write_recipe(tmp_path / "plan.json", replace(ran, recompute_ahead=False))
    code, _, err = run(capsys, "partition", folder, "-p", "2")
    assert (code, "or none; take such a file, or a run with pipeline.recompute_ahead=true" in err) == (2, True)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (("-p", "3", "-m", "6"), "has 2 stages; give -p 2 instead of -p 3"),
        (("-p", "2"), "has 6 microbatches; give -m 6 instead of -m 8"),
        (("-p", "2", "-m", "6", "-v", "2"), "has 1 chunks; give -v 1 instead of -v 2"),
    ],
)
def test_a_file_that_does_not_fit_is_told_by_the_options(
    sizes: tuple[str, ...], message: str, costs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They were called by the keys of a run file, which nobody had written."""
    order = tmp_path / "order.txt"
    write_schedule_file(order, get("gpipe").build(2, num_microbatches=6))
    code, out, err = run(capsys, "partition", costs, *sizes, "--schedule", str(order))
    assert (code, out, err) == (2, "", f"fullbore: {order} {message}, or take another file\n")


def test_what_only_a_run_decides_is_told_as_the_runs(
    costs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order, folder = tmp_path / "order.txt", str(Path(costs).parent)
    write_schedule_file(order, recompute_ahead(get("1f1b").build(2, num_microbatches=6)))
    code, _, err = run(capsys, "partition", costs, "-p", "2", "-m", "6", "--schedule", str(order))
    assert (code, err) == (
        2,
        f"fullbore: {order} has recomputations (R), and no layer of the run recomputes; leave out the Rs, or take a "
        'run whose pipeline.recompute is "full" or a list of layer names\n',
    )
    write_recipe(tmp_path / "plan.json", Recipe(Layout(2), 2, 6, (3, 2), "gpipe", memory_cap=6.0))
    code, _, err = run(capsys, "partition", folder, "-p", "2", "-m", "8")
    assert (code, err) == (
        2,
        "fullbore: gpipe keeps the activations of 8 microbatches on rank 0, above the run's pipeline.memory_cap=6; "
        "take another schedule, fewer microbatches, or a run with a higher cap\n",
    )


def test_a_schedule_that_cuts_sequences_is_not_cut_for(costs: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "partition", costs, "-p", "2", "-m", "4", "--schedule", "seq-1f1b")
    assert (code, "seq-1f1b cuts their sequences into 2 slices; give another schedule" in err) == (2, True)


def test_a_run_in_both_directions_corrects_it_from_both_copies(
    costs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traced(tmp_path, slow_stage=0, name="dualpipe")
    code, out, _ = run(capsys, "partition", str(tmp_path), "-p", "2", "-o", str(tmp_path / "next.json"), "--json")
    found = json.loads(out)
    assert code == 0
    assert sum(found["stage_time_ns"]) == 24_000_000
    assert found["rank_time_ns"] == [24_000_000, 24_000_000], "either rank holds everything once"
    assert found["reason"].endswith("in 2 steps of the run (times 2.00, 1.00 in stages 0 to 1)")
    read = read_recipe(tmp_path / "next.json")
    assert (len(read.recipe.layers_per_stage), read.recipe.layout.streams) == (2, 2)
    assert read.stage_costs is not None
    assert read.stage_costs == (*read.stage_costs[:2], *read.stage_costs[1::-1])
    text = run(capsys, "partition", str(tmp_path), "-p", "2")[1]
    assert "ranks need up to" in text
    assert "as the layers are there twice" in text
    shown = run(capsys, "schedule", "show", "dualpipe", "--recipe", str(tmp_path / "next.json"), "--cost", "1,1,1")
    assert shown[0] == 0


def test_a_run_without_a_profile_says_what_to_give(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "partition", str(tmp_path), "-p", "2")
    assert code == 2
    assert "has no profile.json" in err


def test_no_is_one_json_document_and_sizes_have_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What does not fit is an answer; a size that no machine has is a slip of the pen."""
    layer = {"forward_ns": 1, "backward_input_ns": 1, "backward_weight_ns": 1}
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"layers": [{"name": f"l{i}", **layer, "activation_bytes": 10} for i in range(4)]}))
    code, out, _ = run(capsys, "partition", str(path), "-p", "2", "--memory", "1", "--json")
    assert (code, json.loads(out)["feasible"]) == (1, False)
    path.write_text(json.dumps({"layers": [{"name": "l", **layer, "activation_bytes": 2**58}]}))
    code, _, err = run(capsys, "partition", str(path), "-p", "1")
    assert code == 2
    assert "activation_bytes must be an integer from 0 to" in err


@pytest.mark.parametrize("command", [["show", "1f1b"], ["compare"]])
@pytest.mark.parametrize("cap", ["nan", "-1"])
def test_a_cap_that_is_no_size_is_refused(command: list[str], cap: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "schedule", *command, "-p", "2", "-m", "2", "--memory-cap", cap)
    assert code == 2
    assert "--memory-cap is a number of at least 0" in err


def test_no_command_writes_over_what_it_reads(costs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    order = tmp_path / "order.csv"
    order.write_text(format_torch_csv(get("1f1b").build(2, num_microbatches=2)))
    (tmp_path / "run.toml").write_text("[train]\nsteps = 1\n")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for command, options in (
        (("partition", costs, "-p", "2", "-o", costs), "COSTS and -o"),
        (("schedule", "export", str(order), "--text", str(order)), "SCHEDULE and --text"),
        (("profile", str(tmp_path / "run.toml"), "-o", str(tmp_path / "run.toml")), "MODEL and -o"),
    ):
        code, out, err = run(capsys, *command)
        assert (code, out) == (2, "")
        assert f"{options} are one file" in err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
