"""What a training run gives back: the document of ``fullbore train --json``."""

from __future__ import annotations

from dataclasses import dataclass

from fullbore.diagnose.slow_stage import SlowStage

__all__ = ["TrainResult"]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The keys are the command-line contract's. Times in nanoseconds; losses in nats a token."""

    run_dir: str
    steps: int
    skipped_steps: int
    """Of those, how many updated no weight because a gradient was not finite."""

    loss: float | None
    """Of the last step's batch; None where nothing is computed (emulation)."""

    eval_loss: float | None
    """On held-out text after the last step; None without held-out text or with ``eval_every = 0``."""

    first_eval_loss: float | None
    """Before the first step."""

    tokens_per_s: float | None
    """Median over the steps after the first; None where nothing is computed (emulation)."""

    step_ns: int
    """Median wall time of an optimizer step after the first, flush included."""

    bubble_fraction_measured: float
    bubble_fraction_predicted: float | None
    predicted_step_ns: int | None
    """Compute part of a step by the simulator, without the flush."""

    trace_problems: tuple[str, ...]
    """Why a rank's trace stops early (a full disk); training goes on without it."""

    bottleneck_stage: int
    """The stage that computed longest in the median step."""

    slow_stage: SlowStage | None
    """The stage that computed longer than the others, if one did, and what a better cut would give."""
