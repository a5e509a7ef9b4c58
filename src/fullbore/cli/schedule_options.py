"""What a schedule takes beside its sizes, as the command line writes it: options, costs, links, memory."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from fullbore.cli.argument_types import is_there
from fullbore.errors import ConfigError
from fullbore.plan.made import Made, Solved, solved
from fullbore.plan.schedule import is_file
from fullbore.schedules.entry import ScheduleEntry
from fullbore.shown import shown
from fullbore.synthesis.catalogue import CATALOGUE

__all__ = [
    "cost_options",
    "memory_model_option",
    "names_file",
    "parse_options",
    "require_no_sizes",
    "solve_if_asked",
    "solver_option",
]

_Command = TypeVar("_Command", bound=Callable[..., Any])


def cost_options(command: _Command) -> _Command:
    """``--cost`` and ``--comm``, None where they are not given."""
    cost = click.option(
        "--cost",
        metavar="F,I,W",
        help="Time of forward, backward for the input, backward for the weights of one microbatch on one rank's whole "
        "share; each may be a ':' list, one value a rank. Default 1,1,1.",
    )
    comm = click.option(
        "--comm", metavar="C", help="Delay of a transfer between ranks, or a ':' list, one value a boundary."
    )
    return cost(comm(command))


def _a_number(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """NaN compares false with both ends of a range."""
    del ctx
    if value is not None and math.isnan(value):
        raise ConfigError(f"{param.opts[0]} is a number (given nan)")
    return value


def _a_share(ctx: click.Context, param: click.Parameter, value: float) -> float:
    _a_number(ctx, param, value)
    if not 0 <= value <= 1:
        raise ConfigError(f"{param.opts[0]} is a share, 0 to 1 (given {value:g})")
    return value


def _a_time(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    _a_number(ctx, param, value)
    if value is not None and value <= 0:
        raise ConfigError(f"{param.opts[0]} is a number of seconds above 0 (given {value:g})")
    return value


def memory_model_option(command: _Command) -> _Command:
    """``--input-backward-frees X``."""
    return click.option(
        "--input-backward-frees",
        "frees",
        type=float,
        callback=_a_share,
        default=0.0,
        metavar="X",
        help="Part of an activation that is free after the backward for the input, 0 to 1; the rest stays until that "
        "for the weights. Default 0.",
    )(command)


def solver_option(command: _Command) -> _Command:
    """``--optimal SECONDS``."""
    return click.option(
        "--optimal",
        type=float,
        callback=_a_time,
        metavar="SECONDS",
        help="With auto: let a solver improve it, or prove it the best, for at most so long (fullbore[optimal]).",
    )(command)


def names_file(schedule: str) -> bool:
    """Is it a schedule's file? The names of schedules come first; a file without a suffix is one if it is there."""
    return is_file(schedule) or (schedule not in CATALOGUE and is_there(schedule, kind=Path.is_file))


def require_no_sizes(name: str, given: Mapping[str, object]) -> None:
    """Raises `ConfigError` where any of these options, None where it is not given, stands beside a schedule's file."""
    found = [option for option, value in given.items() if value is not None]
    if found:
        raise ConfigError(f"{name} is a file and has its sizes and its order; leave out {', '.join(found)}")


def solve_if_asked(entry: ScheduleEntry, made: Made, seconds: float | None) -> Solved | None:
    """What ``--optimal`` asks for. Raises `ConfigError` where there is nothing to improve."""
    if seconds is None:
        return None
    if entry.name != "auto":
        raise ConfigError(f"--optimal improves what auto makes, and {entry.name} is as it was published; use auto")
    return solved(made, seconds=seconds)


def parse_options(options: Sequence[str]) -> dict[str, int]:
    """``--option key=value``, as often as it was given; whether the schedule has them, its entry says.

    Raises:
        ConfigError: not key=value, or the value is no whole number.
    """
    found = {}
    for option in options:
        given = shown(repr(option))
        key, equals, value = (part.strip() for part in option.partition("="))
        if not equals or re.fullmatch(r"-?[0-9]{1,9}", value) is None:
            raise ConfigError(f"an option is written key=value with a whole number (given --option {given})")
        if key in found:
            raise ConfigError(f"each option is given once (--option {given} repeats {shown(key)})")
        found[key] = int(value)
    return found
