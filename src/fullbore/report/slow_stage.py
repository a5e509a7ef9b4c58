"""The slow stage of a run in words: which, whether it is compute or waiting, layers or device, and the better cut."""

from __future__ import annotations

from fullbore.diagnose.slow_stage import Cause, SlowStage
from fullbore.timeline.scale import TimeScale

__all__ = ["render_slow_stage"]

_EXPLAINED = 1.1
"""A measured step up to this many times the simulated one is explained by what the stages compute."""

_AS_BUSY = 0.9
"""A rank above this share of the slow one's busy time is as slow, and does not wait for it."""


def render_slow_stage(found: SlowStage) -> str:
    """A few lines, labelled like the others of the end-of-run page."""
    names = found.layers[0] if len(found.layers) == 1 else f"{found.layers[0]} to {found.layers[-1]}"
    lines = [
        f"slow stage       {found.stage} on rank {found.rank} ({names}): computes {found.factor:.2f} times as long as "
        "the others"
    ]
    lines += _compute(found) if found.cause is Cause.COMPUTE else _waiting(found)
    return "\n".join(lines) + "\n"


def _compute(found: SlowStage) -> list[str]:
    others = [share for rank, share in enumerate(found.rank_busy_fractions) if rank != found.rank]
    waiting = [share for share in others if share <= _AS_BUSY * found.busy_fraction] or others
    who = "the others" if len(waiting) == len(others) else f"{len(waiting)} of the others"
    low, high = f"{min(waiting):.0%}", f"{max(waiting):.0%}"
    theirs = high if low == high else f"{low} to {high}"
    if found.device_factor > 1:
        reason = (
            f"its device: it takes {found.device_factor:.2f} times as long for a layer as the others, by the profile"
        )
    else:
        reason = "its layers: they take what the profile says, compared with those of the other ranks"
    return [
        f"reason           compute, not waiting: rank {found.rank} is busy {found.busy_fraction:.0%} of the pass; "
        f"{who}, {theirs}, wait for it",
        f"                 {reason}",
        *_better(found),
    ]


def _better(found: SlowStage) -> list[str]:
    scale = TimeScale.milliseconds()
    now = scale.format(found.predicted_step_ns)
    if found.better_layers_per_stage is None or found.better_step_ns is None:
        present = list(found.layers_per_stage)
        return [f"better cut       none: {present} layers are simulated to take {now} a step, and no cut 1% less"]
    counts = list(found.better_layers_per_stage)
    option = ",".join(map(str, counts))
    return [
        f"better cut       {counts} layers: {scale.format(found.better_step_ns)} a step in place of {now} "
        f"({-found.gain:.1%}), by simulation",
        f"                 --set 'pipeline.partition=[{option}]'",
    ]


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
