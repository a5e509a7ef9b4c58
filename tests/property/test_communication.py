"""The order of communication adds no idle time, however many stages a rank has.

pytorch #172668 and #188833, torchtitan #2209: with several stages a rank, a receive that stands too early holds up a
forward that could run. Here a rank waits for a message right before its use, and receives are posted ahead in the order
of the sends. Two things could still cost time: that the wanted message lies behind others of its lane, and that a
receive is posted too late for its message to be there in time. Neither does, as long as a message takes no longer than
an action.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import assume, given
from hypothesis import strategies as st

from fullbore.costs.delays import boundary_delays
from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.ir.action import Compute, Message, Recv, Send
from fullbore.ir.explicit import explicit_of
from fullbore.ir.flow import consumer_of
from fullbore.ir.lower import lower
from fullbore.ir.placement import Placement
from fullbore.ir.program import Program
from fullbore.ir.schedule import Schedule
from fullbore.ir.torch_lower import with_transfers
from fullbore.schedules.registry import REGISTRY
from fullbore.simulate.engine import simulate
from fullbore.simulate.explicit import simulate_explicit
from tests.property.strategies import published, shuffled

CHUNKED = [name for name, entry in REGISTRY.items() if entry.runnable and (entry.takes_chunks or entry.chunks > 1)]


@dataclass(frozen=True, slots=True)
class Case:
    schedule: Schedule
    costs: list[StageCost]
    links: list[Link]


@st.composite
def runnable(draw: st.DrawFn) -> Schedule:
    """A registered schedule that runs, with several stages a rank. The executor starts the two of a pair one after the
    other, each as soon as its own message is there."""
    case = draw(published(draw(st.sampled_from(CHUNKED))))
    assume(case.sizes.num_chunks > 1)
    return replace(case.schedule, overlaps=frozenset())


@st.composite
def any_order(draw: st.DrawFn) -> Schedule:
    place = draw(st.sampled_from([Placement.loop, Placement.snake]))
    placement = place(draw(st.integers(2, 4)), num_chunks=draw(st.integers(2, 3)))
    split, seed = draw(st.booleans()), draw(st.integers(0, 10**6))
    return shuffled(placement, num_microbatches=draw(st.integers(1, 5)), split=split, seed=seed)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A message takes at most as long as the shortest action."""
    schedule = draw(runnable() | any_order())
    least = draw(st.integers(1, 10))
    time = st.integers(least, 50)
    costs = [StageCost(draw(time), draw(time), draw(time)) for _ in range(schedule.num_stages)]
    links = [Link(draw(st.integers(0, least))) for _ in range(schedule.num_stages - 1)]
    return Case(schedule, costs, links)


def test_these_are_the_schedules_with_several_stages_a_rank() -> None:
    assert {"interleaved-1f1b", "looped-bfs", "zb-v", "v-half", "v-min", "1f1b-v", "dualpipe-v"} <= set(CHUNKED)
    assert {"dualpipe", "chimera"} <= set(CHUNKED)


@given(cases())
def test_receives_posted_in_the_order_of_the_sends_add_no_idle_time(case: Case) -> None:
    without = simulate(case.schedule, costs=case.costs, links=case.links).compute_end_ns
    assert walked(lower(case.schedule), costs=case.costs, links=case.links) == without


@given(cases())
def test_a_receive_right_before_its_use_adds_none_and_one_as_early_as_its_send_may(case: Case) -> None:
    """The second is PyTorch's own place for it."""
    without = simulate(case.schedule, costs=case.costs, links=case.links).compute_end_ns
    in_time = explicit_of(lower(case.schedule), name="in time")
    assert simulate_explicit(in_time, costs=case.costs, links=case.links).compute_end_ns == without
    as_sent = with_transfers(case.schedule)
    assert simulate_explicit(as_sent, costs=case.costs, links=case.links).compute_end_ns >= without


def test_without_a_receive_posted_ahead_a_rank_waits_for_the_transfer() -> None:
    """So what is tested above can fail: the depth that the order alone needs, with nothing to hide a transfer."""
    schedule = REGISTRY["looped-bfs"].build(4, num_microbatches=8)
    costs, links = [StageCost(4, 4, 4)] * schedule.num_stages, [Link(4)] * (schedule.num_stages - 1)
    without = simulate(schedule, costs=costs, links=links).compute_end_ns
    assert walked(lower(schedule, prefetch=2), costs=costs, links=links) == without
    assert walked(lower(schedule, prefetch=1), costs=costs, links=links) > without


def walked(program: Program, *, costs: list[StageCost], links: list[Link]) -> int:
    """When the last action ends, as the executor walks a program, under the rules of lanes.

    A transfer starts when its send and its receive are posted and the one before it on its lane has started. A rank
    posts its first receives at the start, to the lane's depth, and another one when it has taken a message *and* run
    the action that the message was for: what others wait for goes first.
    """
    delays = boundary_delays(program.placement, links=links)
    lanes = program.lanes
    sent: list[list[int]] = [[] for _ in lanes]
    posted = [[0] * min(lane.depth, len(lane.messages)) for lane in lanes]
    started: list[list[int]] = [[] for _ in lanes]
    taken: list[int | None] = [None] * program.num_ranks
    """[rank] the lane of the message that its next action is for."""
    at, now = [0] * program.num_ranks, [0] * program.num_ranks

    def arrival(lane: int, message: Message) -> int | None:
        place = lanes[lane].messages.index(message)
        while len(started[lane]) <= place:
            following = len(started[lane])
            if following >= min(len(sent[lane]), len(posted[lane])):
                return None
            before = started[lane][-1] if started[lane] else 0
            started[lane].append(max(sent[lane][following], posted[lane][following], before))
        return started[lane][place] + delays[min(message.stage, consumer_of(message, program.placement))]

    moved = True
    while moved:
        moved = False
        for rank, instructions in enumerate(program.instructions):
            while at[rank] < len(instructions):
                match instructions[at[rank]]:
                    case Compute() as action:
                        now[rank] += costs[action.stage].of(action.kind)
                        lane = taken[rank]
                        if lane is not None and len(posted[lane]) < len(lanes[lane].messages):
                            posted[lane].append(now[rank])
                        taken[rank] = None
                    case Send(lane=lane):
                        sent[lane].append(now[rank])
                    case Recv(message, lane):
                        there = arrival(lane, message)
                        if there is None:
                            break
                        now[rank] = max(now[rank], there)
                        taken[rank] = lane
                at[rank] += 1
                moved = True
    assert at == [len(instructions) for instructions in program.instructions], "no rank waits for ever"
    return max(now)
