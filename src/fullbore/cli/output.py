"""How commands answer: text for a person, or exactly one JSON document on stdout."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeVar

import click

from fullbore.errors import ConfigError

__all__ = [
    "answer_no",
    "json_option",
    "print_json",
    "print_text",
    "require_cap",
    "use_color",
    "width",
]

_Command = TypeVar("_Command", bound=Callable[..., Any])


def json_option(command: _Command) -> _Command:
    """The ``--json`` flag that every command has."""
    return click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON document.")(command)


def print_json(document: Any) -> None:
    """The only thing a command with ``--json`` may write to stdout."""
    click.echo(json.dumps(_finite(document), allow_nan=False))


def _finite(value: Any) -> Any:
    """JSON has neither NaN nor infinity: both become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def print_text(text: str) -> None:
    """Text that brings its own line ends."""
    click.echo(text, nl=False)


def require_cap(memory_cap: float | None) -> Fraction | None:
    """A cap is a number of at least 0; an infinite one is none. (NaN compares false, so every schedule would fit.)"""
    if memory_cap is not None and not memory_cap >= 0:
        raise ConfigError(f"--memory-cap is a number of at least 0 (given {memory_cap})")
    return None if memory_cap is None or math.isinf(memory_cap) else Fraction(str(memory_cap))


def answer_no(reason: str) -> None:
    """Say why the answer is no, and end with exit code 1."""
    click.echo(reason, err=True)
    click.get_current_context().exit(1)


def width() -> int:
    """Columns of the terminal (or of COLUMNS); 100 where there is none."""
    return shutil.get_terminal_size((100, 24)).columns


def use_color() -> bool:
    """Only on a terminal, and not where NO_COLOR is set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
