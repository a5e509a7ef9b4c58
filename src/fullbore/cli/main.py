"""The command `fullbore`: one module per command, loaded only when it is called.

Exit codes: 0 done, 1 the answer is "no", 2 bad input or a failed run, 130 interrupted, 143 terminated. What fullbore
raises on purpose becomes one readable message on stderr; anything else is our bug and keeps its traceback.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any

import click

from fullbore.errors import ConfigError, FullboreError
from fullbore.nearest import nearest
from fullbore.plain_text import is_plain
from fullbore.shown import shown, with_words_shown
from fullbore.standard_streams import outlive_readers

__all__ = ["COMMANDS", "cli", "main"]

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "schedule": "fullbore.cli.schedule:command",
        "partition": "fullbore.cli.partition:command",
        "profile": "fullbore.cli.profile:command",
        "train": "fullbore.cli.train:command",
        "verify": "fullbore.cli.verify:command",
        "trace": "fullbore.cli.trace:command",
    }
)
"""Command name -> ``module:attribute``. Some need torch, so none is imported before it is asked for."""

_SUMMARIES: Mapping[str, str] = MappingProxyType(
    {
        "schedule": "List the schedules, or draw and measure one.",
        "partition": "Cut the layers of a model into stages.",
        "profile": "Measure what every layer of a model takes.",
        "train": "Train a model through a pipeline.",
        "verify": "Prove that the pipeline computes what one process computes.",
        "trace": "Export the timeline of a run.",
    }
)
"""For `fullbore --help`, which imports no command."""


class _Lazy(click.Group):
    """A group that knows its commands by name and imports one when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        found = getattr(importlib.import_module(module), attribute)
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Click's own hint looks among commands that were imported, and here none is."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = nearest(args[0], COMMANDS)
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {near!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _SUMMARIES[name]) for name in COMMANDS])


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    try:
        click.echo(f"fullbore {version('fullbore')}")
    except PackageNotFoundError:
        click.echo("fullbore (not installed)")
    ctx.exit()


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, callback=_print_version, expose_value=False, is_eager=True, help="Show it.")
def cli() -> None:
    """Pipeline-parallel training that accounts for every idle millisecond.

    \b
    Example:
      fullbore schedule show 1f1b -p 4 -m 8
    """


def main(arguments: list[str] | None = None) -> None:
    """Run one command and end the process with its exit code."""
    outlive_readers()
    interrupts = _Interrupts()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as by nohup
            signal.signal(signal.SIGINT, interrupts)
    code = _run(arguments)
    if interrupts.seen:  # without the interpreter's own end, in which one more takes the exit code away
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


_ENDING_S = 5.0
"""What ending the workers and removing folders may take."""


class _Interrupts:
    """SIGINT: the first one unwinds. Impatient ones right after it would only tear what ends the workers."""

    def __init__(self) -> None:
        self.seen = False
        self._last_s = 0.0

    def __call__(self, number: int, frame: object) -> None:
        del number, frame
        now = time.monotonic()
        if self.seen and now - self._last_s < _ENDING_S:
            return
        self.seen, self._last_s = True, now
        raise KeyboardInterrupt


class _Terminated(BaseException):
    """SIGTERM: unwinds as Ctrl-C does, so that workers are ended and temporary folders removed."""


def _terminate(number: int, frame: object) -> None:
    del number, frame
    raise _Terminated


def _run(arguments: list[str] | None) -> int:
    try:
        code: Any = _commanded(arguments)
        sys.stdout.flush()
    except FullboreError as error:
        click.echo(f"fullbore: {with_words_shown(str(error))}", err=True)
        return 2
    except click.ClickException as error:
        page = io.StringIO()
        error.show(page)
        click.echo(with_words_shown(page.getvalue()), err=True, nl=False)
        return error.exit_code
    except click.exceptions.Exit as end:
        return end.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("fullbore: interrupted", err=True)
        return 130
    except _Terminated:
        click.echo("fullbore: terminated", err=True)
        return 143
    except OSError as error:
        click.echo(f"fullbore: the system refused: {with_words_shown(str(error))}", err=True)
        _discard_stdout()
        return 2
    return code if isinstance(code, int) else 0


def _commanded(arguments: list[str] | None) -> Any:
    """What click answers: the exit code, or the command's return value. Its own handling of EPIPE would say 1."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for argument in given:
        if not is_plain(argument):
            raise ConfigError(
                f"an argument is UTF-8 text without a NUL (given {shown(repr(argument))}); "
                "a file called so needs another name"
            )
    with cli.make_context("fullbore", given) as context:
        return cli.invoke(context)


def _discard_stdout() -> None:
    """What stdout still holds is not tried again at the interpreter's end, which would take the exit code away.

    It may have been stdout that refused (a full disk), and an OSError does not say so.
    """
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
