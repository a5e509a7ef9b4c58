"""On a device whose host runs ahead: nothing in a step waits for it, spans are the device's, memory goes by event."""

from __future__ import annotations

import itertools
import random
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch

from fullbore.errors import RankFailed
from fullbore.ids import Rank, StageIndex
from fullbore.ir.lower import lower
from fullbore.ir.schedule import Schedule
from fullbore.runtime.executor import Executor
from fullbore.runtime.recorder import StepRecorder
from fullbore.runtime.transport.memory_transport import MemoryFabric
from fullbore.synthesis.catalogue import CATALOGUE
from fullbore.timeline.instrument import SpanList
from fullbore.timeline.span import Row
from tests.support.in_memory import SQUARED_ERROR, boundary_of, by_place, chain_batch, edge, engine_of, run_alone
from tests.support.runnable import RUNNABLE
from tests.support.split_schedules import mixed
from tests.support.stream_device import CLOCK_AHEAD_NS, StreamDevice, StreamEngine, StreamTransport

TIMEOUT_S = 20.0
WORK_S = 0.002


@dataclass(slots=True)
class OnStreams:
    """All ranks of a schedule, each a host thread with a device of its own."""

    schedule: Schedule
    devices: list[StreamDevice]
    engines: list[dict[StageIndex, StreamEngine]]
    transports: list[StreamTransport]
    executors: list[Executor]
    spans: list[SpanList]
    opened: threading.Event

    def run(self) -> list[RankFailed]:
        """One step on every rank. The devices open when every host has issued the whole of its step."""
        batch = chain_batch(self.schedule.num_microbatches)
        count = sum(SQUARED_ERROR.count(microbatch) for microbatch in batch)
        errors: list[RankFailed] = []

        def walk(rank: int) -> None:
            for engine in self.engines[rank].values():
                engine.inner.begin(count)
            try:
                self.executors[rank].run(batch)
            except RankFailed as error:
                errors.append(error)

        threads = [threading.Thread(target=walk, args=(rank,)) for rank in range(self.schedule.num_ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return errors


@contextmanager
def on_streams(schedule: Schedule, *, seed: int = 0) -> Iterator[OnStreams]:
    opened = threading.Event()
    issued = threading.Barrier(schedule.num_ranks, action=opened.set)
    source = random.Random(seed)
    fabric = MemoryFabric(delay_s=MemoryFabric.random_delays(seed, longest_s=WORK_S))
    program = lower(schedule)
    placement = schedule.placement
    made = OnStreams(schedule, [], [], [], [], [], opened)
    for rank in range(schedule.num_ranks):
        device = StreamDevice(opened=opened, timeout_s=TIMEOUT_S)
        engines: dict[StageIndex, StreamEngine] = {}
        for stage in placement.stages_of(Rank(rank)):
            engines[stage] = StreamEngine(
                engine_of(stage, schedule),
                device=device,
                entrance=None if placement.previous_stage(stage) is None else edge,
                exit=None if placement.next_stage(stage) is None else edge,
                work_s=lambda: source.uniform(WORK_S, 2 * WORK_S),
            )
        transport = StreamTransport(
            fabric, rank=rank, device=device, all_issued=lambda: issued.wait(TIMEOUT_S) and None
        )
        spans = SpanList()
        executor = Executor(
            program,
            rank=rank,
            engines=engines,
            transport=transport,
            boundary_of=boundary_of,
            device=torch.device("cpu"),
            recorder=StepRecorder(device, spans, rank=rank),
            board=None,
            timeout_s=TIMEOUT_S,
        )
        made.devices.append(device)
        made.engines.append(engines)
        made.transports.append(transport)
        made.executors.append(executor)
        made.spans.append(spans)
    try:
        yield made
    finally:
        opened.set()
        for device in made.devices:
            device.stop()


def every_schedule(num_ranks: int, num_microbatches: int) -> list[Schedule]:
    """Registered ones, and one that splits every second backward."""
    entries = [CATALOGUE[name] for name in RUNNABLE]
    registered = [entry.build(num_ranks, num_microbatches=num_microbatches) for entry in entries]
    return [*registered, mixed(num_ranks, num_microbatches)]


@pytest.mark.parametrize("schedule", every_schedule(4, 8), ids=lambda schedule: schedule.name)
def test_the_host_issues_a_whole_step_before_the_device_has_done_any_of_it(schedule: Schedule) -> None:
    """The devices stay shut until every host is through: one wait inside the step, and it would never end."""
    with on_streams(schedule) as ranks:
        assert ranks.run() == []
        assert [device.num_waits for device in ranks.devices] == [1] * schedule.num_ranks, "only the end of the step"
        engines = [(stage, engine.inner) for mine in ranks.engines for stage, engine in mine.items()]
        gradients = by_place(engines, schedule)
    alone = run_alone(schedule.placement.stages_per_stream, schedule.num_microbatches)
    for place, gradient in alone.gradients.items():
        torch.testing.assert_close(gradients[place], gradient, rtol=1e-12, atol=0)


@pytest.mark.parametrize("schedule", every_schedule(2, 4), ids=lambda schedule: schedule.name)
def test_spans_are_what_the_device_did_and_when(schedule: Schedule) -> None:
    with on_streams(schedule) as ranks:
        assert ranks.run() == []
        for executor in ranks.executors:
            executor.recorder.end_step()
        for rank, spans in enumerate(ranks.spans):
            computed = [span for span in spans.last if span.row is Row.COMPUTE]
            assert [span.action for span in computed] == list(schedule.orders[rank])
            assert all(span.start_ns > CLOCK_AHEAD_NS for span in computed), "the device's clock, not the host's"
            assert all(span.end_ns - span.start_ns >= WORK_S * 1e9 for span in computed)
            assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(computed))


def test_what_is_being_sent_is_kept_until_the_device_has_sent_it() -> None:
    schedule = CATALOGUE["1f1b"].build(2, num_microbatches=4)
    with on_streams(schedule) as ranks:
        sent: list[weakref.ref[torch.Tensor]] = []
        transport = ranks.transports[0]
        plain = transport.send
        transport.send = lambda lane, tensor: (sent.append(weakref.ref(tensor)), plain(lane, tensor))[1]
        held: list[int] = []
        shut = transport._all_issued
        transport._all_issued = lambda: (held.append(sum(ref() is not None for ref in sent)), shut())[1]
        assert ranks.run() == []
        assert held == [4], "the host is through, the device has sent nothing: all four activations are kept"
        assert [ref() for ref in sent] == [None] * 4
        assert transport.held == []
