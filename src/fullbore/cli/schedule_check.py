"""`fullbore schedule check`."""

from __future__ import annotations

from pathlib import Path

import click

from fullbore.cli.argument_types import PATH_TYPE
from fullbore.cli.output import answer_no, json_option, print_json, print_text
from fullbore.errors import ConfigError
from fullbore.ir.schedule_file import open_schedule_file
from fullbore.report.check import check_report
from fullbore.shown import shown

__all__ = ["command"]


@click.command("check")
@click.argument("file", type=PATH_TYPE, metavar="FILE")
@click.option("--blocking", is_flag=True, help="Also look for wait cycles: each send blocks until it is received.")
@click.option(
    "--in-flight",
    metavar="N",
    help="Most activations of one stage and microbatch a rank may keep at once; may be a ':' list, one value a rank.",
)
@json_option
def command(file: Path, blocking: bool, in_flight: str | None, as_json: bool) -> None:
    """Check every rule on a schedule: fullbore text, or PyTorch's CSV with or without SEND and RECV cells.

    Exit code 1 if a rule is broken, 2 if the file cannot be read. Without SEND and RECV cells, --blocking looks at
    sends and receives as fullbore places them: each receive right before its use, each send right after its action.

    \b
    Example:
      fullbore schedule check order.csv --blocking
    """
    found = open_schedule_file(file)
    most = None if in_flight is None else _bounds(in_flight, num_ranks=found.schedule.num_ranks)
    report = check_report(found, where=str(file), blocking=blocking, most_in_flight=most)
    if as_json:
        print_json(report.document())
    else:
        print_text(report.text())
    if not report.valid:
        rules = ", ".join(dict.fromkeys(str(problem.rule) for problem in report.problems))
        answer_no(f"{file} breaks {rules}")


def _bounds(text: str, *, num_ranks: int) -> list[int]:
    words = text.split(":")
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise ConfigError(f"--in-flight takes whole numbers, as in 4 or 4:3:2:1 (given {shown(repr(text))})")
    if len(words) not in (1, num_ranks):
        raise ConfigError(
            f"--in-flight takes one number, or one for each of the {num_ranks} ranks (given {len(words)})"
        )
    numbers = [int(word) for word in words]
    return numbers * num_ranks if len(numbers) == 1 else numbers
