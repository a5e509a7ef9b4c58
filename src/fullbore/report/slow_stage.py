"""The slow stage of a run in words: which, whether it is compute or waiting, layers or device, and the better cut."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fullbore.diagnose.slow_stage import Cause, SlowStage
from fullbore.timeline.scale import TimeScale

__all__ = ["render_slow_stage"]

_EXPLAINED = 1.1
"""A measured step up to this many times the simulated one is explained by what the stages compute."""

_AGREED = 0.01
"""What a gain has to be where the steps agree."""

_LITTLE = 1.25
"""A stage up to this many times as slow as the others that no cut relieves needs no reason: nothing is to be done."""

_OFF = 1.25
"""Measured times that differ from the profile's, or among ranks, by this much are not what the profile says."""


def render_slow_stage(found: SlowStage) -> str:
    """A few lines, labelled like the others of the end-of-run page."""
    names = found.layers[0] if len(found.layers) == 1 else f"{found.layers[0]} to {found.layers[-1]}"
    rests_on = "one step only" if found.num_steps == 1 else f"median of {found.num_steps} steps"
    which = (
        f"slow stage       {found.stage} on rank {found.rank} ({names}): computes {found.factor:.2f} times as long as "
        f"the others ({rests_on})"
    )
    if found.cause is Cause.WAITING:
        lines = [which, *_waiting(found)]
    elif found.better_layers_per_stage is None and found.device_factor == 1 and found.factor < _LITTLE:
        lines = [
            which,
            f"better cut       none: no other cut gains {_least(found)}, by simulation{_why_so_much(found)}",
        ]
    else:
        lines = [which, *_compute(found)]
    return "\n".join(lines) + "\n"


def _compute(found: SlowStage) -> list[str]:
    waiting = found.waiting_ranks
    who = "the others" if len(waiting) == len(found.rank_busy_fractions) - 1 else f"{len(waiting)} of the others"
    theirs = _range([f"{share:.0%}" for share in sorted(found.rank_busy_fractions[rank] for rank in waiting)])
    return [
        f"reason           compute, not waiting: rank {found.rank} is busy {found.busy_fraction:.0%} of the pass; "
        f"{who}, {theirs}, wait for it",
        *(f"                 {line}" for line in (_device(found) if found.device_factor > 1 else _layers(found))),
        *_better(found),
    ]


def _device(found: SlowStage) -> list[str]:
    return [f"its device: it takes {found.device_factor:.2f} times as long for a layer as the others, by the profile"]


def _layers(found: SlowStage) -> list[str]:
    """What the layers took over what the profile says, here and elsewhere; where these are far apart the profile has
    little to say about layers."""
    own = found.rank_over_profile[found.rank]
    if own is None:
        return ["its layers: by the profile they take no time"]
    others = sorted(
        over for rank, over in enumerate(found.rank_over_profile) if rank != found.rank and over is not None
    )
    lines = [f"its layers: they take {own:.2f} times what the profile says"]
    if others:
        lines[0] += f"; those of the other ranks, {_range([f'{over:.2f}' for over in others])} times"
    every = [own, *others]
    if max(*every, 1.0) / min(*every, 1.0) >= _OFF:
        lines.append("times so far from the profile come from a slow device or other work on the machine")
    return lines


def _range(said: Sequence[str]) -> str:
    """Of what is sorted: the first to the last."""
    return said[0] if said[0] == said[-1] else f"{said[0]} to {said[-1]}"


def _better(found: SlowStage) -> list[str]:
    scale = TimeScale.milliseconds()
    now = scale.format(found.predicted_step_ns)
    if found.better_layers_per_stage is None or found.better_step_ns is None:
        less = f"{_least(found)} less than the {now} a step of {list(found.layers_per_stage)} layers"
        return [f"better cut       none: no cut is simulated to take {less}{_why_so_much(found)}"]
    counts = list(found.better_layers_per_stage)
    option = ",".join(map(str, counts))
    return [
        f"better cut       {counts} layers: {scale.format(found.better_step_ns)} a step in place of {now} "
        f"({-found.gain:.1%}), by simulation",
        f"                 --set 'pipeline.partition=[{option}]'",
    ]


def _least(found: SlowStage) -> str:
    """The gain that a cut needs, in whole percent."""
    return f"{math.ceil(round(found.least_gain * 100, 6))}%"


def _why_so_much(found: SlowStage) -> str:
    """Behind a gain that no cut has: a smaller one there may be, but nobody could tell it from noise."""
    return ", and the steps differ by as much" if found.least_gain > _AGREED else ""


def _waiting(found: SlowStage) -> list[str]:
    scale = TimeScale.milliseconds()
    if found.step_ns > _EXPLAINED * found.predicted_step_ns:
        why = (
            f"computing explains {scale.format(found.predicted_step_ns)} of {scale.format(found.step_ns)}; transfers "
            "or the host take the rest"
        )
    else:
        why = "filling and draining take the rest: more microbatches help"
    return [
        f"reason           waiting, not compute: even rank {found.rank} is busy only {found.busy_fraction:.0%} of the "
        "pass",
        f"                 {why}; no cut mends that",
    ]
