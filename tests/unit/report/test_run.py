from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from fullbore.costs.emulation import EmulationSettings
from fullbore.costs.layer import LayerCost, write_costs
from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.ids import StageIndex
from fullbore.ir.codec import format_schedule
from fullbore.ir.recipe import Layout, Recipe
from fullbore.ir.schedule import Schedule
from fullbore.ir.schedule_file import write_schedule_file
from fullbore.plan.recipe_file import write_recipe
from fullbore.report.run import predicted_timeline, summarize_run
from fullbore.schedules.recompute_ahead import recompute_ahead
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from fullbore.timeline.clock import ClockOffset
from fullbore.timeline.shift import repeated
from fullbore.timeline.span import Timeline
from fullbore.trace.writer import TraceWriter

_TIMES = {"forward_ns": 1, "backward_input_ns": 1, "backward_weight_ns": 1}
_LINKS = json.dumps({"layers": [{"name": name, **_TIMES} for name in ("a", "b")], "links": [{"latency_ns": 1}] * 2})
"""A costs file whose layers are those of the run, and whose links are not."""

BROKEN = format_schedule(get("gpipe").build(2, num_microbatches=3)).replace("0F0 0F1", "0F0 0F0")


def write_trace(folder: Path, steps: Sequence[Timeline], *, schedule: Schedule) -> None:
    """What these steps, counted from 0, leave behind."""
    for rank in range(schedule.num_ranks):
        with TraceWriter(
            folder, rank=rank, placement=schedule.placement, schedule=schedule.name, clock=ClockOffset(0, 0)
        ) as writer:
            for number, step in enumerate(steps):
                for span in step.spans:
                    if span.rank == rank:
                        writer.record(span)
                writer.step_ended(number)


@pytest.mark.parametrize("num_steps", [4, 31])
def test_the_slowest_stage_is_that_of_the_steps_after_the_first(num_steps: int, tmp_path: Path) -> None:
    """Which warms up: there the other stage was slow."""
    schedule = get("1f1b").build(2, num_microbatches=3)
    first, usual = (
        simulate(schedule, costs=[StageCost(t, t, t) for t in times]) for times in ((9000, 1000), (1000, 2000))
    )
    write_trace(tmp_path, [first, *[usual] * (num_steps - 1)], schedule=schedule)
    said = f"1.33 times the mean (1.33 to 1.33 in {min(num_steps - 1, 20)} steps)\n"
    assert said in summarize_run(tmp_path, width=90)


def test_the_step_drawn_is_one_of_those_that_count(tmp_path: Path) -> None:
    """For thirty steps stage 0 was slow, and in the last twenty the other one: what is drawn is what is said."""
    schedule = get("1f1b").build(2, num_microbatches=3)
    before, after = (
        simulate(schedule, costs=[StageCost(t, t, t) for t in times]) for times in ((3000, 1000), (1000, 2000))
    )
    write_trace(tmp_path, [*[before] * 30, *[after] * 20], schedule=schedule)
    text = summarize_run(tmp_path, width=90)
    assert text.startswith("measured step 39 of 1f1b\n")
    assert (
        "\nslowest stage    1: computes 0.018 ms in this step; 1.33 times the mean (1.33 to 1.33 in 20 steps)\n" in text
    )


def test_the_prediction_is_of_the_order_that_ran(tmp_path: Path) -> None:
    """Whatever its name would make of the plan's stages: the folder has the order itself."""
    recipe = Recipe(Layout(2), 1, 6, (1, 1), "auto", accumulation=2)
    costs = [StageCost(30, 20, 10), StageCost(10, 40, 20)]
    write_recipe(tmp_path / "plan.json", recipe, stage_costs=costs)
    found = set()
    for name in ("gpipe", "zb-h1"):
        schedule = get(name).build(2, num_microbatches=6)
        write_schedule_file(tmp_path / "schedule.txt", schedule)
        expected = repeated(simulate(schedule, costs=costs), times=2, num_microbatches=6)
        assert predicted_timeline(tmp_path) == expected
        found.add(expected.compute_end_ns)
    assert len(found) == 2


def test_a_plan_without_costs_predicts_nothing(tmp_path: Path) -> None:
    assert predicted_timeline(tmp_path) is None
    write_recipe(tmp_path / "plan.json", Recipe(Layout(2), 1, 3, (1, 1), "1f1b"))
    assert predicted_timeline(tmp_path) is None


def test_the_links_of_an_emulated_run_are_part_of_the_prediction(tmp_path: Path) -> None:
    """They stand in its profile, and what crosses follows from the cut."""
    layers = [LayerCost(f"layers.{i}", 10, 10, 10, output_bytes=100 * i) for i in range(4)]
    links = [Link(5, 10**9), Link(7)]
    recipe = Recipe(Layout(3), 1, 4, (1, 2, 1), "1f1b")
    costs = [StageCost(10, 10, 10), StageCost(20, 20, 20), StageCost(10, 10, 10)]
    write_recipe(tmp_path / "plan.json", recipe, stage_costs=costs)
    write_costs(tmp_path / "profile.json", layers, **EmulationSettings(links=tuple(links)).document())
    schedule = get("1f1b").build(3, num_microbatches=4)
    write_schedule_file(tmp_path / "schedule.txt", schedule)
    assert predicted_timeline(tmp_path) == simulate(schedule, costs=costs, links=links, message_bytes=[0, 200])
    write_costs(tmp_path / "profile.json", layers)
    assert predicted_timeline(tmp_path) == simulate(schedule, costs=costs)


def test_recomputation_ahead_is_where_it_takes_time(tmp_path: Path) -> None:
    recipe = Recipe(Layout(2), 1, 3, (1, 1), "1f1b", recompute=("a",), recompute_ahead=True)
    costs = [StageCost(3, 2, 1, 3), StageCost(3, 2, 1, 0)]
    write_recipe(tmp_path / "plan.json", recipe, stage_costs=costs)
    schedule = recompute_ahead(get("1f1b").build(2, num_microbatches=3), stages=[StageIndex(0)])
    write_schedule_file(tmp_path / "schedule.txt", schedule)
    assert predicted_timeline(tmp_path) == simulate(schedule, costs=costs)


def test_of_two_streams_it_has_both_copies_links_and_recomputations(tmp_path: Path) -> None:
    """The links are those between ranks, the sizes those of the layers at the cut, and no two actions run at once."""
    layers = [LayerCost(f"layers.{i}", 10, 10, 10, output_bytes=100 * i) for i in range(6)]
    links = [Link(5, 10**9), Link(7), Link(2, 10**9)]
    recipe = Recipe(
        Layout(4, 2, streams=2), 1, 8, (1, 2, 2, 1), "dualpipe", recompute=("layers.1",), recompute_ahead=True
    )
    costs = [StageCost(10, 10, 10, 0), StageCost(20, 20, 20, 10), StageCost(20, 20, 20, 0), StageCost(10, 10, 10, 0)]
    both = [*costs, *reversed(costs)]
    write_recipe(tmp_path / "plan.json", recipe, stage_costs=both)
    write_costs(tmp_path / "profile.json", layers, **EmulationSettings(links=tuple(links)).document())
    schedule = recompute_ahead(
        get("dualpipe").build(4, num_microbatches=8).in_turn(), stages=[StageIndex(1), StageIndex(6)]
    )
    write_schedule_file(tmp_path / "schedule.txt", schedule)
    expected = simulate(
        schedule, costs=both, links=[*links, Link(), *links], message_bytes=[0, 200, 400, 0, 400, 200, 0]
    )
    assert predicted_timeline(tmp_path) == expected


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("schedule.txt", None, "cannot read the schedule .*No such file"),
        ("schedule.txt", "fullbore", r"schedule\.txt"),
        (
            "schedule.txt",
            format_schedule(get("gpipe").build(2, num_microbatches=1)),
            "and it 2, 2 and 1",
        ),
        ("schedule.txt", BROKEN, "breaks 2 rule"),
        ("schedule.txt", format_schedule(get("gpipe").build(3, num_microbatches=3)), "3, 3 and 3"),
        ("plan.json", "{", r"plan\.json is not JSON"),
        ("profile.json", None, r"bubble fraction  .* predicted"),
        ("profile.json", _LINKS, "one link for each of the 1 boundaries"),
    ],
)
def test_a_run_has_its_page_whatever_became_of_its_plan(
    name: str, text: str | None, reason: str, tmp_path: Path
) -> None:
    """What cannot be predicted is said, in one line."""
    schedule = get("zb-h1").build(2, num_microbatches=3)
    write_schedule_file(tmp_path / "schedule.txt", schedule)
    costs = [StageCost(3000, 2000, 1000)] * 2
    write_recipe(tmp_path / "plan.json", Recipe(Layout(2), 1, 3, (1, 1), "zb-h1"), stage_costs=costs)
    write_trace(tmp_path, [simulate(schedule, costs=costs)], schedule=schedule)
    if text is None:
        (tmp_path / name).unlink(missing_ok=True)
    else:
        (tmp_path / name).write_text(text)
    page = summarize_run(tmp_path, width=90)
    assert page.startswith("measured step 0 of zb-h1")
    without = [line for line in page.splitlines() if line.startswith("no prediction: ")]
    assert len(without) == (0 if "bubble" in reason else 1)
    assert ("not predicted" in page) == bool(without)
    assert re.search(reason, without[0] if without else page)
