from __future__ import annotations

import pytest

from fullbore.errors import ScheduleError
from fullbore.ids import MicrobatchIndex, SliceIndex, StageIndex
from fullbore.ir.action import Compute, Message, Payload
from fullbore.ir.flow import consumer_of, flow, made_by, needed_by, own_input
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule

TWO_WAYS = Placement.bidirectional(3)


def test_a_bidirectional_placement_holds_the_model_twice() -> None:
    assert TWO_WAYS.ranks == (0, 1, 2, 0, 1, 2)
    assert TWO_WAYS.streams == ((0, 1, 2), (5, 4, 3))
    assert [TWO_WAYS.mirror_of(StageIndex(stage)) for stage in range(6)] == [5, 4, 3, 2, 1, 0]
    for stage in map(StageIndex, range(3)):
        mirror = TWO_WAYS.mirror_of(stage)
        assert mirror is not None
        assert TWO_WAYS.rank_of(mirror) == 2 - TWO_WAYS.rank_of(stage)
    assert Placement.loop(3, num_chunks=2) != TWO_WAYS


@pytest.mark.parametrize(
    "placement",
    [
        *(Placement.linear(1), Placement.linear(4), Placement.loop(2, num_chunks=3), Placement.snake(3, num_chunks=2)),
        *(Placement.bidirectional(1), TWO_WAYS),
    ],
)
def test_next_and_previous_walk_the_streams(placement: Placement) -> None:
    assert sorted(stage for stream in placement.streams for stage in stream) == list(range(placement.num_stages))
    for stream in placement.streams:
        for before, stage, after in zip((None, *stream), stream, (*stream[1:], None), strict=False):
            assert placement.previous_stage(stage) == before
            assert placement.next_stage(stage) == after


def test_one_stream_has_no_mirrors() -> None:
    assert Placement.snake(2, num_chunks=2).mirror_of(StageIndex(0)) is None


@pytest.mark.parametrize("placement", [Placement.linear(3), Placement.snake(3, num_chunks=2), TWO_WAYS])
def test_a_stage_holds_the_layers_of_its_place(placement: Placement) -> None:
    for stream in placement.streams:
        assert [placement.place_of(stage) for stage in stream] == list(range(placement.stages_per_stream))


@pytest.mark.parametrize("streams", [0, 2, 3])
def test_streams_that_cannot_be_are_refused(streams: int) -> None:
    with pytest.raises(ScheduleError, match=rf"num_streams={streams}, stages=3\); use 1"):
        Placement(Placement.linear(3).ranks, num_streams=streams)


def test_messages_follow_the_stream() -> None:
    """The upper stream goes down in stage numbers: its first stage is 5, and 3 computes the loss."""
    assert needed_by(Compute.parse("5F1"), TWO_WAYS) is None
    assert needed_by(Compute.parse("4F1"), TWO_WAYS) == Message(Payload.ACTIVATION, StageIndex(5), MicrobatchIndex(1))
    assert made_by(Compute.parse("3F1"), TWO_WAYS) is None
    assert needed_by(Compute.parse("3B1"), TWO_WAYS) is None
    gradient = Message(Payload.GRADIENT, StageIndex(3), MicrobatchIndex(1))
    assert needed_by(Compute.parse("4I1"), TWO_WAYS) == made_by(Compute.parse("3I1"), TWO_WAYS) == gradient
    assert consumer_of(gradient, TWO_WAYS) == 4
    assert made_by(Compute.parse("5B1"), TWO_WAYS) is None
    assert made_by(Compute.parse("2F0"), TWO_WAYS) is None


def test_slices_travel_apart_and_wait_for_their_neighbours() -> None:
    row = Placement.linear(2)
    needed = Message(Payload.ACTIVATION, StageIndex(0), MicrobatchIndex(1), SliceIndex(2))
    assert needed_by(Compute.parse("1F1.2"), row) == made_by(Compute.parse("0F1.2"), row) == needed
    assert str(needed) == "activation of stage 0, microbatch 1, slice 2"
    assert own_input(Compute.parse("0F1.2"), num_slices=3) == Compute.parse("0F1.1")
    assert own_input(Compute.parse("0F1.0"), num_slices=3) is None
    assert own_input(Compute.parse("0B1.1"), num_slices=3) == Compute.parse("0B1.2")
    assert own_input(Compute.parse("0B1.2"), num_slices=3) == Compute.parse("0F1.2")
    assert own_input(Compute.parse("0W1.1"), num_slices=3) == Compute.parse("0I1.1")


def test_the_streams_of_a_schedule_flow_past_each_other() -> None:
    orders = ("0F0 2F1 2B1 0B0", "3F1 1F0 1B0 3B1")
    actions = tuple(tuple(map(Compute.parse, order.split())) for order in orders)
    both = Schedule("two ways", Placement.bidirectional(2), 2, actions)
    walk = flow(both)
    assert (len(walk.steps), walk.stuck) == (8, ())
    late = Schedule("late", Placement.bidirectional(2), 2, (actions[0], actions[1][1:]))
    assert str(flow(late).stuck[0]) == "rank 0 at 2F1 waits for the activation of stage 3, microbatch 1"
