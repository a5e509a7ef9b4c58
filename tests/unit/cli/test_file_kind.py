"""What a command writes over: all that fullbore wrote, and nothing that merely resembles it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fullbore.cli.file_kind import COSTS, PICTURE, RECIPE, SCHEDULE, TIMELINE, FileKind
from fullbore.costs.layer import LayerCost, write_costs
from fullbore.ir.recipe import Layout, Recipe
from fullbore.ir.schedule_file import write_schedule_file
from fullbore.ir.torch_lower import with_transfers
from fullbore.ir.torch_write import format_torch_csv
from fullbore.plan.recipe_file import write_recipe
from fullbore.schedules.registry import REGISTRY, get

HEAD_BYTES = 1 << 16
SIZES = '"microbatch_size": 1, "microbatches": 2'
LAYOUT, CUT = '"layout": {}', '"layers_per_stage": [1]'
TIMES = '"forward_ns": 1, "backward_input_ns": 1, "backward_weight_ns": 1'
BEGINNINGS: list[tuple[FileKind, str]] = [
    (SCHEDULE, "fullbore schedule 1\nname a\n"),
    (SCHEDULE, "\ufefffullbore schedule 1\nname a\n"),
    (SCHEDULE, "0F0"),
    (SCHEDULE, "10W12\r\n"),
    (SCHEDULE, ",, ,0F0,0F1\n"),
    (SCHEDULE, ",0F0,,0I0,0W0\n1F0,,1B0,,\n"),
    (SCHEDULE, '"0F0","0F1"\n'),
    (SCHEDULE, "0RECV_B1,0B1\n"),
    (SCHEDULE, "0UNSHARD,0F0,0RESHARD,0REDUCE_GRAD\n"),
    (SCHEDULE, "(0F3;3B1)OVERLAP_F_B,0F1\n"),
    (SCHEDULE, "0F1, ( 0F3 ; 3B1 )OVERLAP_F_B\n"),
    (RECIPE, f"{{{LAYOUT}, {SIZES}, {CUT}}}"),
    (RECIPE, f"\ufeff\n{{{CUT}, {LAYOUT}, {SIZES}}}"),
    (PICTURE, "<svg xmlns='http://www.w3.org/2000/svg'>"),
    (PICTURE, '\ufeff<?xml version="1.0"?>\n<!DOCTYPE svg PUBLIC "a" "b">\n<!-- by hand -->\n<svg>'),
    (TIMELINE, '{"displayTimeUnit": "ms"'),
    (COSTS, '{"layers": [{"name": "a", "forward_ns": 1'),
    (COSTS, '{"layers": [{"name": "half written"}, {"name": "a", "forward_ns": 1}]}'),
    (COSTS, f'\ufeff {{"links": [{{}}, {{"latency_ns": 1}}], "layers": [{{{TIMES}, "name": "\\"}}]"}}]}}'),
]
OTHERS: list[tuple[FileKind, str]] = [
    (SCHEDULE, "fullbore schedule of the week\n"),
    (SCHEDULE, "fullbore schedule 10\n"),
    (SCHEDULE, "3D printing notes\n"),
    (SCHEDULE, "3D,2D\n"),
    (SCHEDULE, "0F0abc,0F1\n"),
    (SCHEDULE, "0F,0B\n"),
    (SCHEDULE, "0F1,1A2\n"),
    (SCHEDULE, "0F1,1B2\n3C4,5D6\n"),
    (SCHEDULE, "00F01,01B02\n"),
    (SCHEDULE, "0F0\nand notes on it\n"),
    (SCHEDULE, ",,\n"),
    (SCHEDULE, "(0F3;notes)OVERLAP_F_B,0F1\n"),
    (SCHEDULE, "(0F3;0RECV_B1)OVERLAP_F_B,0F1\n"),
    (RECIPE, f"{{{CUT}, {SIZES}}}"),
    (RECIPE, f"{{{LAYOUT}, {SIZES}}}"),
    (RECIPE, f"{{{LAYOUT}, {CUT}}}"),
    (RECIPE, f'{{"before": {{{LAYOUT}, {SIZES}, {CUT}}}}}'),
    (RECIPE, f'{{{LAYOUT}, {SIZES}, "about": "the key \'layers_per_stage\': [1]"}}'),
    (RECIPE, f"var recipe = {{{LAYOUT}, {SIZES}, {CUT}}}"),
    (PICTURE, '<?xml version="1.0"?>\n<html><body><svg></svg></body></html>'),
    (PICTURE, "<svgs>"),
    (TIMELINE, '{"traceEvents": []'),
    (COSTS, '{"layers": []}'),
    (COSTS, '{"layers": [{"name": "forward_ns"}]}'),
    (COSTS, '{"measured": {"forward_ns": 3}}'),
    (COSTS, '{"columns": ["forward_ns"], "layers": [1, 2]}'),
    (COSTS, f'{{"old": {{"layers": [{{{TIMES}}}]}}}}'),
    (COSTS, f'[{{"layers": [{{{TIMES}}}]}}]'),
    (COSTS, '{"layers": {"forward_ns": [1, 2]}}'),
]


@pytest.mark.parametrize(("kind", "beginning"), BEGINNINGS)
def test_a_kind_is_known_by_its_beginning(kind: FileKind, beginning: str, tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.write_text(beginning, encoding="utf-8", newline="")
    assert kind.is_of(held)
    assert not any(other.is_of(held) for other in (SCHEDULE, RECIPE, PICTURE, TIMELINE, COSTS) if other is not kind)


@pytest.mark.parametrize(("kind", "beginning"), OTHERS)
def test_what_only_resembles_it_is_not_of_it(kind: FileKind, beginning: str, tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.write_text(beginning, encoding="utf-8", newline="")
    assert not kind.is_of(held)


@pytest.mark.parametrize("name", REGISTRY)
def test_every_schedule_that_is_written_is_one(name: str, tmp_path: Path) -> None:
    schedule = get(name).build(2, num_microbatches=4)
    write_schedule_file(tmp_path / "order.txt", schedule)
    assert SCHEDULE.is_of(tmp_path / "order.txt")
    if schedule.placement.num_streams == 1 and schedule.num_slices == 1:
        for form in (schedule, with_transfers(schedule)):
            (tmp_path / "order.csv").write_text(format_torch_csv(form), newline="")
            assert SCHEDULE.is_of(tmp_path / "order.csv")


def test_a_file_that_is_longer_than_what_is_looked_at_is_of_its_kind(tmp_path: Path) -> None:
    """Wherever the beginning ends: inside of a word too."""
    held = tmp_path / "held"
    order = format_torch_csv(get("1f1b").build(2, num_microbatches=4000))
    for blanks in range(len("1234B1234,")):
        held.write_text(f"{' ' * blanks}{order}", newline="")
        assert held.stat().st_size > HEAD_BYTES
        assert SCHEDULE.is_of(held)
    write_costs(held, [LayerCost(f"layers.{index}", 1, 1, 1) for index in range(1000)], device="cpu", torch="2.13")
    assert held.stat().st_size > HEAD_BYTES
    assert COSTS.is_of(held)
    write_recipe(held, Recipe(Layout(1000, 16), 1, 8, (1,) * 16_000, "interleaved-1f1b"))
    assert held.stat().st_size > HEAD_BYTES
    assert RECIPE.is_of(held)


@pytest.mark.timeout(5)
def test_a_text_without_an_end_is_looked_at_once(tmp_path: Path) -> None:
    """Where each of its quotes began another search, it took fifteen seconds in place of six milliseconds."""
    held = tmp_path / "held"
    held.write_text('{"' + '\\"' * (HEAD_BYTES // 2 - 1))
    assert not COSTS.is_of(held)
