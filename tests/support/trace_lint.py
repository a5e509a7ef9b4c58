"""What a Chrome trace must obey so that no viewer drops an event without a word. Each rule has its own name.

Times are read as integer nanoseconds from the file's own digits: a float would hide the very faults looked for.
"""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

Event = dict[str, Any]


def lint(text: str) -> list[str]:
    """The broken rules, one sentence each; empty where the trace is sound."""
    events: list[Event] = json.loads(text, parse_float=lambda digits: digits)["traceEvents"]
    timed = [event for event in events if event["ph"] != "M"]
    found = [*_ids(events), *_monotone(timed)]
    slices: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in timed:
        if event["ph"] == "X":
            slices[event["tid"]].append((_ns(event["ts"]), _ns(event["ts"]) + _ns(event["dur"])))
    found += _nesting(slices)
    return found + _flows([event for event in timed if event["ph"] in "sf"], slices)


def _ns(microseconds: str) -> int:
    whole, _, decimals = microseconds.partition(".")
    assert len(decimals) == 3, f"not written from integer nanoseconds: {microseconds}"
    return int(whole) * 1000 + int(decimals)


def _ids(events: list[Event]) -> list[str]:
    named = {event["tid"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
    found = [f"pid: pid 0 is reserved ({event})" for event in events if event["pid"] == 0]
    for tid in sorted({event["tid"] for event in events if "tid" in event}):
        if tid not in named:
            found.append(f"tid: {tid} has no name")
        if any(event["pid"] == tid for event in events):
            found.append(f"tid: {tid} is also a pid and would be the main thread")
    return found


def _monotone(events: list[Event]) -> list[str]:
    times = [_ns(event["ts"]) for event in events]
    return [f"monotone: {after} after {before}" for before, after in pairwise(times) if after < before]


def _nesting(slices: dict[int, list[tuple[int, int]]]) -> list[str]:
    found = []
    for tid, held in slices.items():
        open_ends: list[int] = []
        for start, end in sorted(held, key=lambda span: (span[0], -span[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            if open_ends and end > open_ends[-1]:
                found.append(f"nesting: tid {tid} has a slice {start}-{end} across the end {open_ends[-1]} of another")
            open_ends.append(end)
    return found


def _flows(events: list[Event], slices: dict[int, list[tuple[int, int]]]) -> list[str]:
    found = []
    ends: dict[tuple[str, int], list[Event]] = defaultdict(list)
    for event in events:
        ends[event["ph"], event["id"]].append(event)
        at = _ns(event["ts"])
        if not any(start <= at < end for start, end in slices[event["tid"]]):
            found.append(f"flow: {event['ph']} {event['id']} lies in no slice")
        if event["ph"] == "f" and event.get("bp") != "e":
            found.append(f"flow: f {event['id']} does not bind to the enclosing slice")
    for identity in sorted({identity for _, identity in ends}):
        starts, finishes = ends["s", identity], ends["f", identity]
        if len(starts) != 1 or len(finishes) != 1:
            found.append(f"flow: id {identity} has {len(starts)} starts and {len(finishes)} ends")
            continue
        start, finish = starts[0], finishes[0]
        if (start["cat"], start["name"]) != (finish["cat"], finish["name"]):
            found.append(f"flow: id {identity} changes its category or name")
        if _ns(finish["ts"]) < _ns(start["ts"]):
            found.append(f"flow: id {identity} arrives before it leaves")
    return found
