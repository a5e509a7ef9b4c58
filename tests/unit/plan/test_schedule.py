from __future__ import annotations

from pathlib import Path

import pytest

from fullbore.config.run import PipelineConfig, RunConfig
from fullbore.costs.layer import LayerCost
from fullbore.errors import ConfigError, InvalidSchedule, ScheduleError
from fullbore.ir.action import Kind
from fullbore.ir.codec import format_schedule
from fullbore.ir.explicit import ExplicitSchedule
from fullbore.ir.schedule import Schedule
from fullbore.ir.schedule_file import read_computed
from fullbore.ir.torch_write import format_torch_csv
from fullbore.plan.apply import with_recipe
from fullbore.plan.check import check_before_start
from fullbore.plan.resolve import resolve
from fullbore.plan.schedule import asked_schedule
from fullbore.schedules.registry import get
from fullbore.simulate.memory import peak_shares
from fullbore.synthesis.catalogue import CATALOGUE
from tests.timetable import schedule_of

NAMES = ("embed", *(f"block{index}" for index in range(6)), "head")
COSTS = tuple(LayerCost(name, 10, 12, 8, output_bytes=2) for name in NAMES)
HEAVY = (*COSTS[:-1], LayerCost("head", 25, 30, 20))


def config(**pipeline: object) -> RunConfig:
    return RunConfig(pipeline=PipelineConfig(**pipeline))  # type: ignore[arg-type]


def test_auto_is_made_for_the_stages_of_the_cut() -> None:
    asked = config(stages=4, microbatches=8, schedule="auto", partition=(2, 2, 2, 2))
    for costs in (COSTS, HEAVY):
        found = resolve(asked, costs=costs, layer_names=NAMES)
        plain = resolve(config(stages=4, microbatches=8, partition=(2, 2, 2, 2)), costs=costs, layer_names=NAMES)
        assert found.predicted is not None
        assert plain.predicted is not None
        assert found.predicted.step_ns < plain.predicted.step_ns
        assert any(action.kind is Kind.BACKWARD_WEIGHT for order in found.schedule.orders for action in order)
    for_equal = resolve(asked, costs=COSTS, layer_names=NAMES).schedule.orders
    assert resolve(asked, costs=HEAVY, layer_names=NAMES).schedule.orders != for_equal


def test_auto_keeps_what_1f1b_keeps_unless_it_is_given_another_cap() -> None:
    def peak(**given: object) -> float:
        asked = config(stages=4, microbatches=12, schedule="auto", **given)
        return float(max(peak_shares(resolve(asked, costs=COSTS, layer_names=NAMES).schedule)))

    assert peak() <= 4
    assert peak(memory_cap=2) <= 2
    assert 4 < peak(memory_cap=12) <= 12


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("name", [name for name, entry in CATALOGUE.items() if entry.cost_driven])
def test_a_recipe_makes_the_order_that_ran_again(name: str, cap: float | None) -> None:
    """Whatever cap stands in the run file beside it."""
    asked = config(stages=4, microbatches=12, schedule=name, memory_cap=cap)
    ran = resolve(asked, costs=HEAVY, layer_names=NAMES)
    for other in (None, 1.5, 12.0):
        again = with_recipe(config(memory_cap=other), ran.recipe)
        assert resolve(again, costs=HEAVY, layer_names=NAMES).schedule == ran.schedule


def test_a_recipe_that_names_no_cap_leaves_the_run_files() -> None:
    recipe = resolve(config(stages=2), costs=COSTS, layer_names=NAMES).recipe
    assert recipe.memory_cap is None
    assert with_recipe(config(memory_cap=3.0), recipe).pipeline.memory_cap == 3.0


def test_a_cap_holds_for_every_schedule() -> None:
    assert asked_schedule(config(stages=2, microbatches=8, memory_cap=2)).make().name == "1f1b"
    with pytest.raises(ScheduleError, match=r"gpipe keeps the activations of 8 microbatches on rank 0.*memory_cap=2"):
        asked_schedule(config(stages=2, microbatches=8, schedule="gpipe", memory_cap=2)).make()
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="memory_cap"):
            config(memory_cap=wrong)


def test_a_file_is_run_as_it_is(tmp_path: Path) -> None:
    made = get("zb-h1").build(2, num_microbatches=4)
    for name, text in (("order.txt", format_schedule(made)), ("order.csv", format_torch_csv(made))):
        (tmp_path / name).write_text(text, encoding="utf-8")
        asked = config(stages=2, microbatches=4, schedule=str(tmp_path / name))
        check_before_start(asked)
        assert asked_schedule(asked).make().orders == made.orders
        assert asked_schedule(asked).layout(asked.mesh).num_stages == 2
        assert resolve(asked, costs=COSTS, layer_names=NAMES).recipe.schedule == str(tmp_path / name)


def test_a_file_without_a_suffix_is_named_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = get("gpipe").build(2, num_microbatches=4)
    Path("order").write_text(format_schedule(made), encoding="utf-8")
    assert asked_schedule(config(stages=2, microbatches=4, schedule="./order")).make().orders == made.orders
    with pytest.raises(ScheduleError, match="there is no schedule 'order'"):
        asked_schedule(config(stages=2, microbatches=4, schedule="order"))


@pytest.mark.parametrize("cap", [None, 3.0])
def test_a_file_decides_the_order_of_every_action(cap: float | None, tmp_path: Path) -> None:
    """Nothing here makes this order: the second microbatch goes first. Name, cap and costs change nothing about it."""
    made = schedule_of([0, 1], ["0F1 0F0 0B1 0F2 0B0 0B2", "1F1 1B1 1F0 1F2 1B0 1B2"], num_microbatches=3, name="1f1b")
    path = tmp_path / "1f1b.txt"
    path.write_text(format_schedule(made), encoding="utf-8")
    asked = config(stages=2, microbatches=3, schedule=str(path), memory_cap=cap)
    assert resolve(asked, costs=HEAVY, layer_names=NAMES).schedule == made


def test_a_file_is_read_once_to_resolve_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "order.txt"
    path.write_text(format_schedule(get("zb-h1").build(2, num_microbatches=4)), encoding="utf-8")
    asked, reads = config(stages=2, microbatches=4, schedule=str(path)), []

    def counted(path: Path) -> Schedule | ExplicitSchedule:
        reads.append(path)
        return read_computed(path)

    monkeypatch.setattr("fullbore.plan.schedule.read_computed", counted)
    resolve(asked, costs=COSTS, layer_names=NAMES)
    assert reads == [path]
    known = asked_schedule(asked)
    resolve(asked, costs=COSTS, layer_names=NAMES, asked=known)
    assert reads == [path] * 2


def test_a_file_of_other_sizes_or_with_errors_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "order.txt"
    path.write_text(format_schedule(get("1f1b").build(2, num_microbatches=4)), encoding="utf-8")
    for given, wanted in (
        (
            {"stages": 4, "microbatches": 4},
            "has 2 stages; give pipeline.stages=2 instead of pipeline.stages=4, or take",
        ),
        (
            {"stages": 2, "microbatches": 8},
            "has 4 microbatches; give pipeline.microbatches=4 instead of pipeline.microbatches=8",
        ),
        (
            {"stages": 2, "microbatches": 4, "chunks": 2},
            "has 1 chunks; give pipeline.chunks=1 instead of pipeline.chunks=2",
        ),
        ({"stages": 2, "microbatches": 4, "options": {"extra_warmup": 1}}, "takes no options"),
    ):
        with pytest.raises(ScheduleError, match=wanted):
            check_before_start(config(schedule=str(path), **given))
    with pytest.raises(ScheduleError, match="No such file"):
        check_before_start(config(schedule="missing.csv"))
    path.write_text(path.read_text(encoding="utf-8").replace("0B0", "0F1", 1), encoding="utf-8")
    with pytest.raises(InvalidSchedule, match="0F1 on rank 0 is there twice"):
        check_before_start(config(stages=2, microbatches=4, schedule=str(path)))
    path.write_text(format_schedule(get("seq-1f1b").build(2, num_microbatches=4)), encoding="utf-8")
    with pytest.raises(ScheduleError, match="to run, a schedule has whole microbatches"):
        check_before_start(config(stages=2, microbatches=4, schedule=str(path)))
    path.write_text(format_schedule(get("dualpipe").build(2, num_microbatches=4)), encoding="utf-8")
    check_before_start(config(stages=2, microbatches=4, schedule=str(path)))
    both = config(stages=2, microbatches=4, schedule=str(path))
    assert asked_schedule(both).layout(both.mesh).streams == 2
