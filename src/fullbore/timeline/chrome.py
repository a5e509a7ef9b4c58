"""Timelines as Chrome trace JSON, for ui.perfetto.dev.

The format has traps that lose events without a word, so the rules are kept here and linted in the tests:

- complete events (``X``) of one (pid, tid) nest or are disjoint; an overlap of one nanosecond drops an event. Hence
  microseconds are written from integers, ``"%d.%03d"``, never through a float.
- Perfetto ignores sort indices: rows are ordered by tid. One process, never pid 0 and never tid == pid;
  tid = 1000 + 10 * rank + row.
- A flow's start and finish lie inside their slices and share category, name and id; the finish has ``bp: "e"``.
- A slice's colour is a hash of its name without trailing digits: the kind comes first, the microbatch last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fullbore.ir.action import Compute, Kind, Payload
from fullbore.ir.flow import consumer_of, made_by
from fullbore.ir.placement import Placement
from fullbore.timeline.span import Row, Span, Timeline

__all__ = ["Step", "chrome_trace"]

_PID = 1
_STEPS_TID = 999
_ROWS: Mapping[Row, int] = MappingProxyType({Row.COMPUTE: 0, Row.NESTED: 1, Row.WAIT: 2, Row.FLUSH: 3})


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step's spans, on the clock that all steps share."""

    index: int
    timeline: Timeline
    placement: Placement | None = None
    """Who follows whom; None: stage after stage, in one direction."""


@dataclass(frozen=True, slots=True)
class _Event:
    """One line of the file. Sorted by time; at one time a slice opens before a flow binds to it."""

    time: int
    order: int
    text: str


def chrome_trace(steps: Iterable[Step], *, title: str) -> Iterator[str]:
    """The document in pieces, one event a line. Times start at 0 with the first span.

    An arrow whose ends would not lie inside their slices in that order (zero-length work, or clocks off by more than
    the gap) is left out rather than bound to a wrong slice.
    """
    held = [step for step in steps if step.timeline.spans]
    origin = min((span.start_ns for step in held for span in step.timeline.spans), default=0)
    yield '{"displayTimeUnit":"ms","traceEvents":[\n'
    yield ",\n".join(_names(held, title=title))
    events: list[_Event] = []
    taken: dict[int, int] = {}
    flows = 0
    for position, step in enumerate(held):
        end = max(span.end_ns for span in step.timeline.spans)
        if position + 1 < len(held):
            end = min(end, max(_start(held[position + 1]), _start(step)))
        events.append(_slice(f"step {step.index}", _STEPS_TID, _start(step) - origin, end - origin, {}))
        several = step.timeline.has_several_stages
        for span in step.timeline.spans:
            tid = _tid(span)
            start = max(span.start_ns - origin, taken.get(tid, 0))
            taken[tid] = max(span.end_ns - origin, start)
            events.append(_slice(_name(span, several), tid, start, taken[tid], _arguments(span, step.index)))
        for source, target in _messages(step):
            flows += 1
            events.extend(_flow(source, target, identity=flows, origin=origin))
    for event in sorted(events, key=lambda event: (event.time, event.order)):
        yield ",\n" + event.text
    yield "\n]}\n"


def _start(step: Step) -> int:
    return min(span.start_ns for span in step.timeline.spans)


def _names(steps: list[Step], *, title: str) -> Iterator[str]:
    yield _json({"ph": "M", "pid": _PID, "name": "process_name", "args": {"name": title}})
    yield _json({"ph": "M", "pid": _PID, "tid": _STEPS_TID, "name": "thread_name", "args": {"name": "steps"}})
    rows = {(span.rank, span.row) for step in steps for span in step.timeline.spans}
    digits = max(2, len(str(max((rank for rank, _ in rows), default=0))))
    for rank, row in sorted(rows, key=lambda key: (key[0], _ROWS[key[1]])):
        tid = 1000 + 10 * rank + _ROWS[row]
        name = f"r{rank:0{digits}d} {row.value}"
        yield _json({"ph": "M", "pid": _PID, "tid": tid, "name": "thread_name", "args": {"name": name}})


def _tid(span: Span) -> int:
    return 1000 + 10 * span.rank + _ROWS[span.row]


def _slice(name: str, tid: int, start: int, end: int, arguments: Mapping[str, object]) -> _Event:
    head = json.dumps(name)
    tail = f',"args":{_json(arguments)}' if arguments else ""
    times = f'"ts":{_micro(start)},"dur":{_micro(end - start)}'
    return _Event(start, 0, f'{{"ph":"X","pid":{_PID},"tid":{tid},"name":{head},{times}{tail}}}')


def _name(span: Span, several: bool) -> str:
    """``F 3``; with several stages on a rank ``F stage 4 mb 3``; waits say for what, ``wait F 3``."""
    if span.action is None:
        return str(span.activity)
    action = span.action
    which = f"stage {action.stage} mb {action.unit}" if several else action.unit
    return f"{'wait ' if span.row is Row.WAIT else ''}{action.kind.value} {which}"


def _arguments(span: Span, step: int) -> Mapping[str, object]:
    if span.action is None:
        return {"step": step}
    return {"action": str(span.action), "stage": span.action.stage, "microbatch": span.action.microbatch, "step": step}


def _messages(step: Step) -> Iterator[tuple[Span, Span]]:
    """(producer, first consumer) of every activation and gradient that crosses ranks."""
    compute = [
        (span, span.action) for span in step.timeline.spans if span.row is Row.COMPUTE and span.action is not None
    ]
    by_action = {action: span for span, action in compute}
    last = max((action.stage for _, action in compute), default=0)
    route = step.placement or Placement.linear(last + 1)
    for span, action in compute:
        message = made_by(action, route)
        if message is None:
            continue
        wanted = Compute(consumer_of(message, route), Kind.FORWARD, message.microbatch, message.slice_index)
        forward = message.payload is Payload.ACTIVATION
        for kind in (Kind.FORWARD,) if forward else (Kind.BACKWARD, Kind.BACKWARD_INPUT):
            target = by_action.get(wanted.of_kind(kind))
            if target is not None and target.rank != span.rank:
                yield span, target


def _flow(source: Span, target: Span, *, identity: int, origin: int) -> Iterator[_Event]:
    """From just before the producer's end to just after the consumer's start, both strictly inside."""
    leaves = source.end_ns - 1
    arrives = target.start_ns + (1 if target.duration_ns > 1 else 0)
    if source.duration_ns < 1 or target.duration_ns < 1 or leaves > arrives:
        return
    assert source.action is not None
    name = "activation" if source.action.kind is Kind.FORWARD else "gradient"
    common = f'"pid":{_PID},"cat":"message","name":"{name}","id":{identity}'
    for phase, extra, span, time in (("s", "", source, leaves), ("f", ',"bp":"e"', target, arrives)):
        at = time - origin
        yield _Event(at, 1, f'{{"ph":"{phase}"{extra},{common},"tid":{_tid(span)},"ts":{_micro(at)}}}')


def _micro(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
