"""`fullbore train`: train a model through a pipeline, and say where the time went."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import click

from fullbore.cli.output import json_option, print_json, print_text, width
from fullbore.cli.run_options import TORCH, preload, read_config, run_options
from fullbore.config.run import RunConfig
from fullbore.errors import ConfigError, TraceError
from fullbore.plan.check import check_before_start, check_inputs, check_rehearsal
from fullbore.report.run import summarize_run
from fullbore.session.ranks import run_ranks
from fullbore.train.result import TrainResult

__all__ = ["command"]


@click.command()
@run_options
@click.option("--emulate", type=click.Path(path_type=Path), metavar="COSTS.json", help="Wait instead of computing.")
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
        check_rehearsal(config, emulate)
    folder = _run_folder(config)
    result = _start(config, folder, emulate)
    if result is None:
        return
    if as_json:
        print_json(asdict(result))
        return
    print_text("\n" + _summary(result) + "\n" + _closing(result))


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


def _summary(result: TrainResult) -> str:
    """A run that has finished is not failed by its report."""
    try:
        return summarize_run(Path(result.run_dir), width=width(), slow_stage=result.slow_stage)
    except TraceError as error:
        return f"no timeline: {error}\n"


def _run_folder(config: RunConfig) -> Path:
    """``train.run_dir``, or a new folder under ``runs/``. One that holds a run already is refused."""
    if config.train.run_dir is None:
        name = datetime.now().strftime("%Y%m%d-%H%M%S")
        taken = [path.name for path in Path("runs").glob(f"{name}*")]
        return Path("runs") / (f"{name}-{len(taken) + 1}" if taken else name)
    folder = Path(config.train.run_dir)
    if any((folder / name).exists() for name in ("run.toml", "profile.json", "plan.json", "metrics.jsonl", "trace")):
        raise ConfigError(f"train.run_dir {folder} already holds a run; choose another folder, or remove it")
    return folder


def _closing(result: TrainResult) -> str:
    lines = [f"run folder       {result.run_dir}"]
    if result.loss is not None:
        lines.append(f"loss             {result.loss:.4f} nats a token in step {result.steps}")
    if result.eval_loss is not None and result.first_eval_loss is not None:
        lines.append(f"held-out loss    {result.first_eval_loss:.4f} -> {result.eval_loss:.4f} nats a token")
    if result.skipped_steps:
        lines.append(f"skipped          {result.skipped_steps} of {result.steps} steps: a gradient was not finite")
    lines += [f"trace            {problem}" for problem in result.trace_problems]
    speed = "" if result.tokens_per_s is None else f", {result.tokens_per_s:,.0f} tokens/s"
    lines.append(f"step             {result.step_ns / 1e6:.1f} ms{speed} (medians)")
    return "\n".join(lines) + "\n"
