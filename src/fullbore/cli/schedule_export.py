"""`fullbore schedule export`: a schedule as a file that PyTorch, another tool or `schedule check` reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import click

from fullbore.cli.argument_types import PATH_TYPE, SCHEDULE_TYPE
from fullbore.cli.file_kind import SCHEDULE
from fullbore.cli.output import answer_no, json_option, print_json, print_text, require_cap
from fullbore.cli.output_file import STDOUT, Output, require_outputs
from fullbore.cli.schedule_options import (
    cost_options,
    names_file,
    parse_options,
    require_no_sizes,
    solve_if_asked,
    solver_option,
)
from fullbore.errors import ConfigError
from fullbore.ir.codec import format_schedule
from fullbore.ir.explicit import ExplicitSchedule
from fullbore.ir.schedule import Schedule
from fullbore.ir.schedule_file import read_schedule_file
from fullbore.ir.torch_lower import with_transfers
from fullbore.ir.torch_write import format_torch_csv
from fullbore.ir.validate import validate
from fullbore.plan.made import make_for, unit_timing
from fullbore.report.schedule import above_cap
from fullbore.simulate.memory import peak_shares
from fullbore.synthesis.auto import variants
from fullbore.synthesis.catalogue import CATALOGUE, get
from fullbore.written_file import write_whole

__all__ = ["command", "write_csv"]


@click.command("export")
@click.argument("source", type=SCHEDULE_TYPE, metavar="NAME|FILE")
@click.option("-p", "ranks", type=int, metavar="RANKS", help="Number of ranks.")
@click.option("-m", "microbatches", type=int, metavar="MICROBATCHES", help="Microbatches per step.")
@click.option("-v", "chunks", type=int, metavar="CHUNKS", help="Stages per rank; the schedule's own by default.")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="An option of the schedule.")
@cost_options
@click.option("--memory-cap", type=float, metavar="X", help="Most microbatch-shares a rank may keep; exit 1 above it.")
@solver_option
@click.option("--csv", "csv_file", type=PATH_TYPE, metavar="FILE", help="Write PyTorch's pipeline CSV; - is stdout.")
@click.option("--communication", is_flag=True, help="With SEND, RECV and REDUCE_GRAD cells in the CSV.")
@click.option("--text", "text_file", type=PATH_TYPE, metavar="FILE", help="Write fullbore text; - is stdout.")
@json_option
def command(
    source: str,
    ranks: int | None,
    microbatches: int | None,
    chunks: int | None,
    options: tuple[str, ...],
    cost: str | None,
    comm: str | None,
    memory_cap: float | None,
    optimal: float | None,
    csv_file: Path | None,
    communication: bool,
    text_file: Path | None,
    as_json: bool,
) -> None:
    """Write a schedule into a file: a registered one by NAME, or one read from FILE.

    A FILE has its sizes. PyTorch adds communication to a CSV without; one with --communication runs as it is.

    \b
    Examples:
      fullbore schedule export 1f1b -p 4 -m 8 --csv 1f1b.csv
      fullbore schedule export auto -p 4 -m 8 --cost 10,11,8 --memory-cap 4 --csv auto.csv
      fullbore schedule export order.csv --csv lowered.csv --communication
    """
    if csv_file is None and text_file is None:
        raise ConfigError("schedule export needs --csv FILE, --text FILE or both, to know what to write")
    if communication and csv_file is None:
        raise ConfigError("--communication is for a CSV; fullbore text has computation only: give --csv FILE too")
    own = Path(source) if source not in CATALOGUE else None
    require_outputs(
        Output(option="--csv", path=csv_file, kind=SCHEDULE, takes_dash=True),
        Output(option="--text", path=text_file, kind=SCHEDULE, takes_dash=True),
        inputs={"SCHEDULE": own},
        as_json=as_json,
    )
    given = _Given(ranks, microbatches, chunks, parse_options(options), cost, comm, require_cap(memory_cap), optimal)
    schedule = _source(source, given)
    computed = schedule if isinstance(schedule, Schedule) else schedule.compute_part()
    validate(computed)
    above = above_cap(peak_shares(computed), given.memory_cap)
    written: dict[str, str] = {}
    if csv_file is not None and above is None:
        lowered = with_transfers(computed) if isinstance(schedule, Schedule) and communication else schedule
        write_csv(csv_file, lowered if communication else computed)
        written["csv"] = str(csv_file)
    if text_file is not None and above is None:
        _write(text_file, format_schedule(computed))
        written["text"] = str(text_file)
    if as_json:
        sizes = {"ranks": computed.num_ranks, "stages": computed.num_stages, "microbatches": computed.num_microbatches}
        print_json({"name": computed.name, **sizes, "communication": communication, **written})
    else:
        for path in written.values():
            if path != "-":
                click.echo(f"wrote {path}", err=True)
    if above is not None:
        answer_no(f"{computed.name} {above}; nothing is written")


def write_csv(path: Path, schedule: Schedule | ExplicitSchedule) -> None:
    """PyTorch's CSV of a schedule; ``-`` is stdout."""
    _write(path, format_torch_csv(schedule))


def _write(path: Path, text: str) -> None:
    if path == STDOUT:
        print_text(text)
        return
    try:
        write_whole(path, [text])
    except OSError as error:
        raise ConfigError(f"cannot write the schedule {path}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class _Given:
    """What a schedule by name is made for; nothing of it is for a file."""

    ranks: int | None
    microbatches: int | None
    chunks: int | None
    options: Mapping[str, int]
    cost: str | None
    comm: str | None
    memory_cap: Fraction | None
    optimal: float | None


def _source(source: str, given: _Given) -> Schedule | ExplicitSchedule:
    """A registered schedule, or a file; the names of schedules come first."""
    if names_file(source):
        options = {"-p": given.ranks, "-m": given.microbatches, "-v": given.chunks, "--option": given.options or None}
        costs = {"--cost": given.cost, "--comm": given.comm}
        require_no_sizes(source, {**options, **costs, "--memory-cap": given.memory_cap, "--optimal": given.optimal})
        return read_schedule_file(Path(source))
    entry = get(source)
    if given.ranks is None or given.microbatches is None:
        raise ConfigError(f"{source} needs -p RANKS and -m MICROBATCHES; for example -p 4 -m 8")
    made = make_for(
        entry,
        variants(
            entry,
            given.ranks,
            num_microbatches=given.microbatches,
            num_chunks=given.chunks,
            options=given.options,
        ),
        timing=unit_timing(
            cost="1,1,1" if given.cost is None else given.cost, comm="0" if given.comm is None else given.comm
        ),
        memory_cap=given.memory_cap,
    )
    solved = solve_if_asked(entry, made, given.optimal)
    return made.schedule if solved is None else solved.made.schedule
