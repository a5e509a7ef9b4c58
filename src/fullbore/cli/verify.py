"""`fullbore verify`: prove that the pipeline computes what one process computes."""

from __future__ import annotations

from pathlib import Path

import click

from fullbore.cli.output import json_option, print_json, print_text
from fullbore.cli.run_options import preload, read_config, run_options
from fullbore.errors import ConfigError
from fullbore.plan.check import check_before_start, check_inputs
from fullbore.report.verify import render_verify, verify_document
from fullbore.session.ranks import run_ranks
from fullbore.shown import shown
from fullbore.verify.fault import ScaledGradient
from fullbore.verify.report import VerifyReport

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
        print_json(verify_document(report))
    else:
        print_text(render_verify(report))
    if not report.parity:
        click.get_current_context().exit(1)


def _fault(text: str) -> tuple[str, float]:
    name, equals, factor = text.rpartition("=")
    try:
        if equals and name:
            return name, float(factor)
    except ValueError:
        pass
    raise ConfigError(f"--scale-gradient is NAME=FACTOR, as in model.norm.weight=1.001 (given {shown(repr(text))})")
