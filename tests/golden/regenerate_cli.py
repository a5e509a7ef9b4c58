"""Rewrite the goldens of the command line and the Chrome trace: ``python -m tests.golden.regenerate_cli``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from unittest import mock

from fullbore.cli.main import main as fullbore
from fullbore.schedules.registry import REGISTRY
from fullbore.timeline.chrome import Step, chrome_trace
from tests.support.timelines import measured

FOLDER = Path(__file__).parent / "cli"
COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "schedule-list.txt": "schedule list",
        "schedule-list.json": "schedule list --json",
        **{f"show-{name}-p4-m8.txt": f"schedule show {name} -p 4 -m 8" for name in REGISTRY},
        **{f"show-{name}-p2-m4.json": f"schedule show {name} -p 2 -m 4 --json" for name in REGISTRY},
        "show-1f1b-p4-m6-uneven.txt": "schedule show 1f1b -p 4 -m 6 --cost 1:1:1:2,1,1 --comm 0.5",
        "show-1f1b-p8-m32-folded.txt": "schedule show 1f1b -p 8 -m 32",
        "help.txt": "--help",
        "help-show.txt": "schedule show --help",
    }
)


def outputs() -> dict[str, str]:
    """What every command prints on a page of 100 columns, by file name."""
    found = {name: _printed(command.split()) for name, command in COMMANDS.items()}
    found["trace-1f1b-p2-m2.json"] = "".join(chrome_trace([Step(0, measured(ranks=2, microbatches=2))], title="1f1b"))
    return found


def _printed(arguments: list[str]) -> str:
    with _page() as page, suppress(SystemExit):
        fullbore(arguments)
    return page.getvalue()


@contextmanager
def _page() -> Iterator[StringIO]:
    page = StringIO()
    with mock.patch("sys.stdout", page), mock.patch.dict("os.environ", {"COLUMNS": "100", "LINES": "24"}):
        yield page


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    texts = outputs()
    for path in FOLDER.iterdir():
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
