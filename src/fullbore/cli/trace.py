"""`fullbore trace export`: the timeline of a run as a file for ui.perfetto.dev."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import click

from fullbore.cli.argument_types import PATH_TYPE
from fullbore.cli.file_kind import TIMELINE
from fullbore.cli.output import json_option, print_json, print_text
from fullbore.cli.output_file import STDOUT, Output, require_outputs
from fullbore.errors import ConfigError, TraceError
from fullbore.shown import shown
from fullbore.timeline.chrome import Step, chrome_trace
from fullbore.trace.format import trace_path
from fullbore.trace.reader import Trace, read_trace
from fullbore.written_file import write_whole

__all__ = ["command"]

_DEFAULT_STEPS = 10


@click.group()
def command() -> None:
    """Export the timeline of a run.

    \b
    Example:
      fullbore trace export runs/first -o trace.json
    """


@command.command("export")
@click.argument("run_dir", type=PATH_TYPE)
@click.option("-o", "output", type=PATH_TYPE, required=True, metavar="FILE", help="Where to write; - is stdout.")
@click.option("--steps", "window", metavar="A:B", help="Steps A to B - 1; the last 10 by default.")
@json_option
def export_command(run_dir: Path, output: Path, window: str | None, as_json: bool) -> None:
    """Write the spans of RUN_DIR as Chrome trace JSON. Open it in ui.perfetto.dev.

    \b
    Examples:
      fullbore trace export runs/first -o trace.json
      fullbore trace export runs/first -o trace.json --steps 20:25
    """
    _require_outside(output, run_dir)
    require_outputs(Output(option="-o", path=output, kind=TIMELINE, takes_dash=True), as_json=as_json)
    trace = read_trace(run_dir)
    chosen = _chosen(trace, window)
    steps = (Step(step, trace.timeline(step), trace.placement) for step in chosen)
    _write(output, chrome_trace(steps, title=f"{trace.schedule} pipeline"))
    uncertainty = trace.clock_uncertainty_ns
    if as_json:
        print_json({"path": str(output), "steps": list(chosen), "clock_uncertainty_ns": uncertainty})
        return
    click.echo(
        f"{output}: steps {chosen[0]} to {chosen[-1]} of {trace.num_ranks} ranks, "
        f"clocks agree to {uncertainty / 1000:.3g} us; open it in ui.perfetto.dev",
        err=output == STDOUT,
    )


def _require_outside(output: Path, run_dir: Path) -> None:
    """Raises TraceError for what would replace the trace itself, or be taken for a part of it."""
    kept = trace_path(run_dir, rank=0).parent
    if output != STDOUT and Path(os.path.realpath(output)).is_relative_to(os.path.realpath(kept)):
        raise TraceError(f"{kept} holds the trace that is read, and -o {output} lies in it; name a file outside")


def _write(output: Path, lines: Iterable[str]) -> None:
    if output == STDOUT:
        for line in lines:
            print_text(line)
        return
    try:
        write_whole(output, lines)
    except OSError as error:
        raise TraceError(f"cannot write the timeline {output}: {error.strerror}") from error


def _chosen(trace: Trace, window: str | None) -> tuple[int, ...]:
    if not trace.steps:
        raise TraceError(f"the trace in {trace.run_dir} has no step that all ranks finished")
    if window is None:
        return trace.steps[-_DEFAULT_STEPS:]
    match = re.fullmatch(r"([0-9]{0,18}):([0-9]{0,18})", window)
    if match is None:
        raise ConfigError(f"a window of steps is written A:B, as in 20:25 (given {shown(repr(window))})")
    first, end = match.groups()
    lowest, highest = int(first or 0), int(end) if end else trace.steps[-1] + 1
    chosen = tuple(step for step in trace.steps if lowest <= step < highest)
    if not chosen:
        raise TraceError(
            f"no step of the trace lies in {window} (it has {trace.steps[0]} to {trace.steps[-1]}, "
            f"so --steps {trace.steps[0]}:{trace.steps[-1] + 1} is all of it)"
        )
    return chosen
