from __future__ import annotations

from dataclasses import replace

from fullbore.costs.stage import StageCost
from fullbore.ids import Rank, StageIndex
from fullbore.schedules.recompute_ahead import recompute_ahead
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from fullbore.timeline.scale import TimeScale
from fullbore.timeline.span import Row, Timeline
from fullbore.timeline.text import render_text
from tests.support.timelines import measured, of_schedule


def test_1f1b_is_the_classic_picture() -> None:
    assert render_text(of_schedule(), width=80) == (
        "   0                   10                  20                  30     busy idle\n"
        "r0 F0F1F2F3............B0==F4B1==F5B2==F6B3==F7B4==..B5==..B6==..B7==  73%  27%\n"
        "r1 ..F0F1F2........B0==F3B1==F4B2==F5B3==F6B4==F7B5==..B6==..B7==....  73%  27%\n"
        "r2 ....F0F1....B0==F2B1==F3B2==F4B3==F5B4==F6B5==F7B6==..B7==........  73%  27%\n"
        "r3 ......F0B0==F1B1==F2B2==F3B3==F4B4==F5B5==F6B6==F7B7==............  73%  27%\n"
        "F- forward   B= backward   . idle\n"
    )


def test_a_grid_wider_than_the_page_is_folded_between_units() -> None:
    text = render_text(of_schedule(), width=60)
    assert text == (
        "   0                   10\n"
        "r0 F0F1F2F3............B0==F4B1==F5B2\n"
        "r1 ..F0F1F2........B0==F3B1==F4B2==F5\n"
        "r2 ....F0F1....B0==F2B1==F3B2==F4B3==\n"
        "r3 ......F0B0==F1B1==F2B2==F3B3==F4B4\n"
        "\n"
        "         20                  30     busy idle\n"
        "r0 ==F6B3==F7B4==..B5==..B6==..B7==  73%  27%\n"
        "r1 B3==F6B4==F7B5==..B6==..B7==....  73%  27%\n"
        "r2 F5B4==F6B5==F7B6==..B7==........  73%  27%\n"
        "r3 ==F5B5==F6B6==F7B7==............  73%  27%\n"
        "F- forward   B= backward   . idle\n"
    )
    assert max(map(len, text.splitlines())) <= 60


def test_numbers_of_two_digits_widen_every_unit() -> None:
    row = render_text(of_schedule("gpipe", ranks=1, microbatches=11), width=120).splitlines()[1]
    assert row.startswith("r0 F0-F1-F2-F3-F4-F5-F6-F7-F8-F9-F10B0====B1====")


def test_several_stages_on_a_rank_show_the_stage() -> None:
    timeline = of_schedule(ranks=2, microbatches=1)
    moved = [replace(span, rank=Rank(0)) for span in timeline.spans if span.row is Row.COMPUTE]
    text = render_text(Timeline.of(moved, num_ranks=1), width=40)
    assert text.splitlines()[1] == "r0 0F0-1F0-1B0=====0B0===== 100%   0%"
    assert {span.action.stage for span in moved if span.action} == {StageIndex(0), StageIndex(1)}


def test_recomputation_that_runs_ahead_is_in_the_legend() -> None:
    """It is an action of its own there, and drawn as one."""
    ahead = recompute_ahead(get("1f1b").build(2, num_microbatches=2), stages={StageIndex(0)})
    text = render_text(simulate(ahead, costs=[StageCost(1, 1, 0)] * 2), width=60)
    assert "R0" in text.splitlines()[1]
    assert text.splitlines()[-1] == "F- forward   B= backward   R~ recomputation   . idle"


def test_a_measured_step_is_scaled_and_shows_milliseconds_recomputation_and_flush() -> None:
    text = render_text(measured(), width=100, scale=TimeScale.milliseconds())
    lines = text.splitlines()
    assert lines[0].split() == ["0", "10", "20", "30", "ms", "busy", "idle"]
    assert lines[1].startswith("r0 F0-F1-F2-F3-...")
    assert "~~B0=" in lines[1]
    assert lines[1].rstrip("0123456789% ").endswith("###")
    assert lines[-1] == "F- forward   B= backward   ~ recomputation   # flush   . idle"
    assert max(map(len, lines)) <= 100


def test_recomputation_as_an_action_has_its_letter() -> None:
    schedule = recompute_ahead(get("1f1b").build(2, num_microbatches=2))
    assert render_text(simulate(schedule, costs=[StageCost(1, 1, 0)] * 2), width=60) == (
        "   0              5         busy idle\n"
        "r0 F0-F1-R0~...B0=R1~...B1=  75%  25%\n"
        "r1 ...F0-R0~B0=F1-R1~B1=...  75%  25%\n"
        "F- forward   B= backward   R~ recomputation   . idle\n"
    )


def test_the_picture_does_not_depend_on_when_the_step_began() -> None:
    late = measured(start_ns=987_654_321_987)
    assert render_text(late, width=100) == render_text(measured(), width=100)


def test_color_keeps_the_labels_and_the_width() -> None:
    plain = render_text(of_schedule(), width=80)
    colored = render_text(of_schedule(), width=80, color=True)
    assert "\x1b[48;5;75;38;5;16mF0F1F2F3\x1b[0m............\x1b[48;5;114;38;5;16mB0  \x1b[0m" in colored
    assert "\x1b" not in plain


def test_boxes_too_narrow_for_their_label_show_the_kind() -> None:
    text = render_text(of_schedule(ranks=2, microbatches=500), width=60)
    assert max(map(len, text.splitlines())) <= 60
    assert set(text.splitlines()[1].split()[1]) <= set("FB-=.0123456789")


def test_an_empty_timeline_says_so() -> None:
    assert render_text(Timeline(2, ()), width=80, title="nothing") == "nothing\n(an empty timeline)\n"
