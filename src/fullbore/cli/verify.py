"""`fullbore verify`: prove that the pipeline computes what one process computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from fullbore.cli.output import json_option, print_json, print_text
from fullbore.cli.run_options import preload, read_config, run_options
from fullbore.errors import ConfigError
from fullbore.plan.check import check_before_start, check_inputs
from fullbore.session.ranks import run_ranks
from fullbore.verify.report import ScaledGradient, TensorError, Undivided, VerifyReport

__all__ = ["command"]


@click.command()
@run_options
@click.option("--steps", type=click.IntRange(min=1), default=3, show_default=True, help="Optimizer steps to compare.")
@click.option(
    "--scale-gradient",
    metavar="NAME=FACTOR",
    help="Put a fault in: scale one gradient of the pipeline, to see the proof fail.",
)
@json_option
def command(
    run: Path | None,
    recipe: Path | None,
    overrides: tuple[str, ...],
    steps: int,
    scale_gradient: str | None,
    as_json: bool,
) -> None:
    """Compare loss, every gradient and every parameter with one process running the same microbatches.

    Exit code 0: parity; 1: no parity. float64 within 1e-9, float32 within 1e-5, relative to each tensor's largest
    value.

    \b
    Examples:
      fullbore verify --set pipeline.stages=4 --set model.dtype=float64
      fullbore verify --scale-gradient model.norm.weight=1.001
    """
    config = read_config(run, recipe=recipe, overrides=overrides)
    check_before_start(config)
    check_inputs(config)
    fault = None if scale_gradient is None else ScaledGradient(*_fault(scale_gradient))
    ranks, loads = config.pipeline.stages, preload(config)
    report: VerifyReport | None = run_ranks(
        "fullbore.verify.run:verify_rank", config, steps, fault, num_ranks=ranks, preload=loads
    )
    if report is None:
        return
    if as_json:
        print_json(_document(report))
    else:
        print_text(_text(report))
    if not report.parity:
        click.get_current_context().exit(1)


def _fault(text: str) -> tuple[str, float]:
    name, equals, factor = text.rpartition("=")
    try:
        if equals and name:
            return name, float(factor)
    except ValueError:
        pass
    raise ConfigError(f"--scale-gradient is NAME=FACTOR, as in model.norm.weight=1.001 (given {text!r})")


def _document(report: VerifyReport) -> dict[str, Any]:
    """The contract's keys. JSON has no infinity: a tensor that is infinitely far has the error null."""
    undivided = report.undivided_batch
    return {
        "parity": report.parity,
        "tolerance": report.tolerance,
        "dtype": report.dtype,
        "steps": report.steps,
        "loss": {"max_relative_error": _finite(report.loss_relative_error)},
        "initial_weights": _errors(report.initial_weights),
        "gradients": _errors(report.gradients),
        "parameters": _errors(report.parameters),
        "buffers": _errors(report.buffers),
        "optimizer": report.optimizer,
        "adamw_parameters": _errors(report.adamw_parameters),
        "undivided_batch": None if undivided is None else _undivided(undivided),
        "not_comparable": [asdict(note) for note in report.not_comparable],
        "first_difference": report.first_difference,
        "failures": list(report.failures),
    }


def _errors(errors: Sequence[TensorError]) -> list[dict[str, Any]]:
    return [{"name": error.name, "max_relative_error": _finite(error.max_relative_error)} for error in errors]


def _undivided(found: Undivided) -> dict[str, Any]:
    return {
        "how": found.how,
        "loss_relative_error": _finite(found.loss_relative_error),
        "gradient_relative_error": _finite(found.gradient_relative_error),
    }


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None


def _text(report: VerifyReport) -> str:
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
        lines.append(
            f"first difference: {report.first_difference}; parity is equality within the tolerance, not of bits"
        )
    for note in report.not_comparable:
        lines.append(f"not comparable: {note.what}: {note.why}")
    lines.append("")
    if report.parity:
        lines.append(f"parity in {report.dtype}")
    else:
        lines.append(f"NO parity in {report.dtype}: {len(report.failures)} too far from the reference; the worst:")
        lines += [f"  {failure}" for failure in report.failures[:5]]
    return "\n".join(lines) + "\n"
