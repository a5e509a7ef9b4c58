from __future__ import annotations

from pathlib import Path

import pytest

from fullbore.config.run import PipelineConfig, RunConfig
from fullbore.costs.layer import LayerCost
from fullbore.errors import ConfigError, InvalidSchedule, ScheduleError
from fullbore.ir.action import Kind
from fullbore.ir.codec import format_schedule
from fullbore.ir.torch_write import format_torch_csv
from fullbore.plan.check import check_before_start
from fullbore.plan.resolve import resolve
from fullbore.plan.schedule import layout_of, schedule_of
from fullbore.schedules.registry import get
from fullbore.simulate.memory import peak_shares

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


def test_a_cap_holds_for_every_schedule() -> None:
    assert schedule_of(config(stages=2, microbatches=8, memory_cap=2)).name == "1f1b"
    with pytest.raises(ScheduleError, match=r"gpipe keeps the activations of 8 microbatches on rank 0.*memory_cap=2"):
        schedule_of(config(stages=2, microbatches=8, schedule="gpipe", memory_cap=2))
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="memory_cap"):
            config(memory_cap=wrong)


def test_a_file_is_run_as_it_is(tmp_path: Path) -> None:
    made = get("zb-h1").build(2, num_microbatches=4)
    for name, text in (("order.txt", format_schedule(made)), ("order.csv", format_torch_csv(made))):
        (tmp_path / name).write_text(text, encoding="utf-8")
        asked = config(stages=2, microbatches=4, schedule=str(tmp_path / name))
        check_before_start(asked)
        assert schedule_of(asked).orders == made.orders
        assert layout_of(asked).num_stages == 2
        assert resolve(asked, costs=COSTS, layer_names=NAMES).recipe.schedule == str(tmp_path / name)


def test_a_file_of_other_sizes_or_with_errors_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "order.txt"
    path.write_text(format_schedule(get("1f1b").build(2, num_microbatches=4)), encoding="utf-8")
    for given, wanted in (
        ({"stages": 4, "microbatches": 4}, "has 2 stages and pipeline.stages is 4; set pipeline.stages=2"),
        ({"stages": 2, "microbatches": 8}, "has 4 microbatches and pipeline.microbatches is 8"),
        ({"stages": 2, "microbatches": 4, "chunks": 2}, "has 1 chunks and pipeline.chunks is 2"),
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
    assert layout_of(config(stages=2, microbatches=4, schedule=str(path))).streams == 2
