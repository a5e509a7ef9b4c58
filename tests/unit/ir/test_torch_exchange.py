"""Both ways between fullbore and torch.distributed.pipelining, with PyTorch's own classes, writer and parser."""

from __future__ import annotations

from pathlib import Path

import pytest

from fullbore.costs.stage import StageCost
from fullbore.errors import ScheduleError
from fullbore.ir.action import Compute
from fullbore.ir.blocking import wait_cycles
from fullbore.ir.explicit import ExplicitSchedule
from fullbore.ir.explicit_spec import ExplicitRule, explicit_problems
from fullbore.ir.schedule import Schedule
from fullbore.ir.schedule_file import open_schedule_file, read_schedule_file
from fullbore.ir.torch_csv import parse_torch_csv
from fullbore.ir.torch_lower import with_transfers
from fullbore.ir.torch_write import format_torch_csv
from fullbore.ir.validate import Rule, problems, validate
from fullbore.schedules.registry import REGISTRY
from fullbore.simulate.engine import simulate
from tests.property.strategies import fits
from tests.support import torch_schedules

WITHOUT_OVERLAP = [name for name in torch_schedules.MULTI if name != "ScheduleDualPipeV"]
SIZES = [(1, 2), (2, 2), (2, 8), (3, 6), (4, 4), (4, 8), (8, 16)]


def has_csv(schedule: Schedule) -> bool:
    """PyTorch's stages run in one direction, on whole sequences."""
    return schedule.placement.num_streams == 1 and schedule.num_slices == 1


FITTING = [
    (name, p, m)
    for name, entry in REGISTRY.items()
    for p, m in ((1, 2), (2, 4), (4, 8), (8, 16))
    if fits(entry, p, m, entry.chunks, {}) and has_csv(entry.build(p, num_microbatches=m))
]


def read_torch_cells(text: str, *, name: str) -> Schedule | ExplicitSchedule:
    return parse_torch_csv(text, name=name, where="x").schedule


def cells(schedule: Schedule | ExplicitSchedule) -> list[list[str]]:
    """As PyTorch's CSV has them: what may run at once in one cell; without the reductions of gradients."""
    rows = [row.split(",") for row in format_torch_csv(schedule).split()]
    return [[cell for cell in row if "REDUCE_GRAD" not in cell] for row in rows]


def words(schedule: Schedule | ExplicitSchedule) -> list[list[str]]:
    return [list(map(str, order)) for order in schedule.orders]


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_the_order_of_gpipe_is_read(p: int, m: int, tmp_path: Path) -> None:
    path = tmp_path / "gpipe.csv"
    torch_schedules.dump_order(torch_schedules.single("ScheduleGPipe", num_ranks=p, num_microbatches=m), path)
    found = open_schedule_file(path)
    assert isinstance(found.schedule, Schedule)
    assert found.schedule == REGISTRY["gpipe"].build(p, num_microbatches=m)
    assert found.notes == (f"dropped {p} REDUCE_GRAD: the runtime derives them",)


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_the_faulty_order_of_1f1b_is_reported_and_not_mended(p: int, m: int, tmp_path: Path) -> None:
    """PyTorch 2.13.0, `Schedule1F1B._get_pipeline_order`: the last rank's forwards are numbered 1 to m."""
    path = tmp_path / "1f1b.csv"
    torch_schedules.dump_order(torch_schedules.single("Schedule1F1B", num_ranks=p, num_microbatches=m), path)
    schedule = read_schedule_file(path)
    assert isinstance(schedule, Schedule)
    last = p - 1
    unknown = f"{last}F{m}"
    position = words(schedule)[last].index(unknown)
    places = [(found.rule, found.rank, found.position, str(found.action)) for found in problems(schedule)]
    assert (Rule.KNOWN_MICROBATCH, last, position, unknown) in places
    assert (Rule.COMPLETE, last, None, f"{last}F0") in places
    assert all(rank == last for _, rank, _, _ in places)
    others = REGISTRY["1f1b"].build(p, num_microbatches=m)
    assert words(schedule)[:last] == words(others)[:last]


@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize("name", WITHOUT_OVERLAP)
def test_what_pytorch_dumps_is_read_checked_and_simulated(name: str, p: int, m: int, tmp_path: Path) -> None:
    made = torch_schedules.multi(name, num_ranks=p, num_microbatches=m)
    computed, lowered = tmp_path / "computed.csv", tmp_path / "lowered.csv"
    made._dump_csv(str(computed), format="compute_only")
    made._dump_csv(str(lowered), format="compute_comms")
    schedule, explicit = read_schedule_file(computed), read_schedule_file(lowered)
    assert isinstance(schedule, Schedule)
    assert (schedule.num_ranks, schedule.num_stages, schedule.num_microbatches) == (p, 2 * p, m)
    assert words(schedule) == [[str(action) for action in made.pipeline_order[r] if action] for r in range(p)]
    assert list(schedule.placement.ranks) == [made.stage_index_to_group_rank[stage] for stage in range(2 * p)]
    validate(schedule)
    timeline = simulate(schedule, costs=[StageCost(1, 1, 1)] * schedule.num_stages)
    assert timeline.compute_end_ns >= 6 * m
    if p > 1:
        assert isinstance(explicit, ExplicitSchedule)
        assert explicit_problems(explicit) == ()
        assert wait_cycles(explicit) == ()
        assert words(explicit.compute_part()) == words(schedule)


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("ScheduleInterleaved1F1B", []),
        ("ScheduleInterleavedZeroBubble", []),
        ("ScheduleZBVZeroBubble", [ExplicitRule.LANE_ORDER] * 3),
    ],
)
def test_deferred_receives_have_wait_cycles_and_in_a_v_another_order_than_the_sends(
    name: str, rules: list[ExplicitRule], tmp_path: Path
) -> None:
    """PyTorch 2.13.0, ``defer_pp_recv=True``: its parity rule looks at pairs of ranks, and a cycle may have more; and
    each receive moves to its own use, which in a V is not the order in which the other rank sends."""
    made = torch_schedules.multi(name, num_ranks=4, num_microbatches=8, defer_pp_recv=True)
    path = tmp_path / "deferred.csv"
    made._dump_csv(str(path), format="compute_comms")
    explicit = read_schedule_file(path)
    assert isinstance(explicit, ExplicitSchedule)
    assert [problem.rule for problem in explicit_problems(explicit)] == rules
    assert len(wait_cycles(explicit)) == 1


@pytest.mark.parametrize(("p", "m"), [(1, 2), (2, 4), (2, 9), (4, 8), (4, 11)])
def test_overlapped_cells_are_read_and_written(p: int, m: int, tmp_path: Path) -> None:
    made = torch_schedules.multi("ScheduleDualPipeV", num_ranks=p, num_microbatches=m)
    for form in ("compute_only", "compute_comms") if p > 1 else ("compute_only",):
        path = tmp_path / f"{form}.csv"
        made._dump_csv(str(path), format=form)
        found = read_schedule_file(path)
        assert len(found.overlaps) == path.read_text().count("OVERLAP_F_B") > 0
        if isinstance(found, Schedule):
            validate(found)
            assert format_torch_csv(found).encode() == path.read_bytes()
        else:
            assert explicit_problems(found) == ()
            assert read_torch_cells(format_torch_csv(found), name=found.name) == found


@pytest.mark.parametrize(("name", "p", "m"), FITTING)
def test_pytorch_loads_what_is_written_here(name: str, p: int, m: int, tmp_path: Path) -> None:
    schedule = REGISTRY[name].build(p, num_microbatches=m)
    chunks = schedule.num_stages // p
    path = tmp_path / "ours.csv"
    path.write_bytes(format_torch_csv(schedule).encode())
    loaded = torch_schedules.runtime(num_ranks=p, num_microbatches=m, num_chunks=chunks)
    loaded._load_csv(str(path))
    assert [list(map(str, loaded.pipeline_order[rank])) for rank in range(p)] == cells(schedule)
    assert loaded.stage_index_to_group_rank == dict(enumerate(schedule.placement.ranks))
    path.write_bytes(format_torch_csv(with_transfers(schedule)).encode())
    loaded = torch_schedules.runtime(num_ranks=p, num_microbatches=m, num_chunks=chunks)
    loaded._load_csv(str(path), format="compute_comms")
    order = [[str(action) for action in loaded.pipeline_order_with_comms[rank]] for rank in range(p)]
    kept = [[cell for cell in row if "REDUCE_GRAD" not in cell] for row in order]
    assert kept == cells(with_transfers(schedule))
    for row in order:
        for position, cell in enumerate(row):
            if "REDUCE_GRAD" in cell:
                stage = cell.removesuffix("REDUCE_GRAD")
                assert not [after for after in row[position:] if after.startswith((f"{stage}B", f"{stage}W"))]


@pytest.mark.parametrize(("name", "p", "m"), FITTING)
def test_sends_and_receives_stand_where_pytorch_puts_them(name: str, p: int, m: int) -> None:
    schedule = REGISTRY[name].build(p, num_microbatches=m)
    lowered = torch_schedules.add_send_recv(cells(schedule), ranks=list(schedule.placement.ranks))
    assert cells(with_transfers(schedule)) == lowered


def test_the_bytes_are_pytorchs_own(tmp_path: Path) -> None:
    path = tmp_path / "theirs.csv"
    schedule = REGISTRY["gpipe"].build(2, num_microbatches=3)
    loaded = torch_schedules.runtime(num_ranks=2, num_microbatches=3)
    path.write_bytes(format_torch_csv(schedule).encode())
    loaded._load_csv(str(path))
    loaded._dump_csv(str(tmp_path / "again.csv"), format="compute_only")
    assert (tmp_path / "again.csv").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("built", "error", "words"),
    [
        ({"num_ranks": 4, "num_microbatches": 4, "num_chunks": 2}, AssertionError, "incorrect number of ranks"),
        (
            {"num_ranks": 2, "num_microbatches": 8, "num_chunks": 2},
            AssertionError,
            r"Got 4 \S+ microbatches for stage 0, expected 8",
        ),
        ({"num_ranks": 2, "num_microbatches": 4, "num_chunks": 1}, KeyError, r"^[23]$"),
    ],
)
def test_a_file_of_other_sizes_than_what_was_built_is_refused_by_pytorch(
    built: dict[str, int], error: type[Exception], words: str, tmp_path: Path
) -> None:
    """The words of docs/torchtitan.md. Where stages lie is not compared: a wrong rank shows in the first step."""
    path = tmp_path / "zb-v.csv"
    path.write_bytes(format_torch_csv(REGISTRY["zb-v"].build(2, num_microbatches=4)).encode())
    with pytest.raises(error, match=words):
        torch_schedules.runtime(**built)._load_csv(str(path))


def test_pytorch_lets_through_what_is_refused_here(tmp_path: Path) -> None:
    """PyTorch 2.13.0: its pattern is matched at the start of a cell, not against all of it."""
    assert str(torch_schedules.torch_schedules._Action.from_str("1F0abc")) == "1F0"
    path = tmp_path / "typo.csv"
    path.write_text("0F0,0B0\n1F0abc,1B0\n")
    with pytest.raises(ScheduleError, match=r"typo.csv, row 2, column 1: a cell is stage, kind, microbatch"):
        read_schedule_file(path)
    assert Compute.parse("1F0")
