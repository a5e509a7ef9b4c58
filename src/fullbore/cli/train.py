"""`fullbore train`: train a model through a pipeline, and say where the time went."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from fullbore.cli.argument_types import PATH_TYPE
from fullbore.cli.output import json_option, print_json, print_text, width
from fullbore.cli.run_options import TORCH, preload, read_config, run_options
from fullbore.config.run import RunConfig
from fullbore.plan.check import check_before_start, check_emulation, check_inputs
from fullbore.report.run import render_run
from fullbore.session.ranks import run_ranks
from fullbore.session.run_folder import run_folder
from fullbore.train.result import TrainResult

__all__ = ["command"]


@click.command()
@run_options
@click.option("--emulate", type=PATH_TYPE, metavar="COSTS.json", help="Wait instead of computing.")
@json_option
def command(
    run: Path | None, recipe: Path | None, overrides: tuple[str, ...], emulate: Path | None, as_json: bool
) -> None:
    """Train; without a file, a small Llama on real text over two stage processes.

    Starts its own workers on this machine; under torchrun it joins the group that is there.

    \b
    Examples:
      fullbore train
      fullbore train run.toml --set pipeline.stages=4 --set train.steps=20
      fullbore train --emulate costs.json --set pipeline.stages=4 --set train.steps=5
    """
    config = read_config(run, recipe=recipe, overrides=overrides)
    check_before_start(config)
    if emulate is None:
        check_inputs(config)
    else:
        check_emulation(config, emulate)
    with run_folder(config) as folder:
        result = _start(config, folder, emulate)
    if result is None:
        return
    if as_json:
        print_json(asdict(result))
        return
    print_text("\n" + render_run(result, width=width()))


def _start(config: RunConfig, folder: Path, emulate: Path | None) -> TrainResult | None:
    """Rank 0's result; None on the other ranks of a group that torchrun started."""
    ranks = config.pipeline.stages
    result: TrainResult | None
    given: tuple[str, ...]
    if emulate is None:
        target, given, loads = "fullbore.train.loop:train_rank", (), preload(config)
    else:
        target, given, loads = "fullbore.train.emulate:emulate_rank", (str(emulate),), TORCH
    result = run_ranks(target, config, str(folder), *given, num_ranks=ranks, preload=loads)
    return result
