"""What `fullbore verify` answers: a table of the largest errors, or every error as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fullbore.verify.report import NOTHING_COMPARED, TensorError, VerifyReport

__all__ = ["render_verify", "verify_document"]


def verify_document(report: VerifyReport) -> dict[str, Any]:
    """The JSON answer. A tensor that is infinitely far has an infinite error, which JSON writes as null."""
    undivided = report.undivided_batch
    return {
        "parity": report.parity,
        "tolerance": report.tolerance,
        "dtype": report.dtype,
        "steps": report.steps,
        "loss": {"max_relative_error": report.loss_relative_error},
        "initial_weights": _errors(report.initial_weights),
        "gradients": _errors(report.gradients),
        "parameters": _errors(report.parameters),
        "buffers": _errors(report.buffers),
        "optimizer": report.optimizer,
        "adamw_parameters": _errors(report.adamw_parameters),
        "undivided_batch": None if undivided is None else asdict(undivided),
        "not_comparable": [asdict(note) for note in report.not_comparable],
        "first_difference": report.first_difference,
        "failures": list(report.failures),
    }


def _errors(errors: Sequence[TensorError]) -> list[dict[str, Any]]:
    return [asdict(error) for error in errors]


def render_verify(report: VerifyReport) -> str:
    """One line for each kind of tensor, what could not be compared, and the verdict."""
    rows = [
        ("loss", 1, report.loss_relative_error, report.tolerance),
        *(
            (label, len(errors), max((e.max_relative_error for e in errors), default=0.0), bound)
            for label, errors, bound in (
                ("initial weights", report.initial_weights, 0.0),
                ("gradients, step 1", report.gradients, report.tolerance),
                (f"parameters after {report.steps} steps of {report.optimizer}", report.parameters, report.tolerance),
                (f"buffers after {report.steps} steps", report.buffers, report.tolerance),
            )
            if errors or label.startswith("gradients")
        ),
    ]
    lines = [f"{'compared with one process':<42}{'tensors':>8}{'largest error':>15}{'allowed':>10}"]
    for label, count, error, bound in rows:
        verdict = "" if error <= bound else "  <-- too far"
        lines.append(f"{label:<42}{count:>8}{error:>15.1e}{bound:>10.0e}{verdict}")
    if report.adamw_parameters:
        drift = max(error.max_relative_error for error in report.adamw_parameters)
        label = f"parameters after {report.steps} steps of adamw"
        lines.append(f"{label:<42}{len(report.adamw_parameters):>8}{drift:>15.1e}  reported, not judged")
    if report.undivided_batch is not None:
        for label, error in (
            (f"loss, {report.undivided_batch.how}", report.undivided_batch.loss_relative_error),
            (f"gradients, {report.undivided_batch.how}", report.undivided_batch.gradient_relative_error),
        ):
            lines.append(f"{label:<42}{'':>8}{error:>15.1e}  reported, not judged")
    if report.first_difference is not None:
        lines.append(f"first difference: {report.first_difference}; whatever comes before it has the same bits")
    for note in report.not_comparable:
        lines.append(f"not comparable: {note.what}: {note.why}")
    lines.append("")
    if report.parity:
        lines.append(f"parity in {report.dtype}")
        return "\n".join(lines) + "\n"
    if not report.gradients:
        lines.append(f"NO parity in {report.dtype}: {NOTHING_COMPARED}")
    far = [failure for failure in report.failures if failure != NOTHING_COMPARED]
    if far:
        lines.append(f"NO parity in {report.dtype}: {len(far)} too far from the reference; the worst:")
        lines += [f"  {failure}" for failure in far[:5]]
    return "\n".join(lines) + "\n"
