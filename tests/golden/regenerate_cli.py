"""Rewrite the goldens of the command line and the Chrome trace: ``python -m tests.golden.regenerate_cli``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, suppress
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from unittest import mock

from fullbore.cli.main import main as fullbore
from fullbore.schedules.registry import REGISTRY
from fullbore.timeline.chrome import Step, chrome_trace
from tests.support.timelines import measured

FOLDER = Path(__file__).parent / "cli"
INPUTS = Path(__file__).parent / "inputs"
"""The files that commands read; they run in this folder."""

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "schedule-list.txt": "schedule list",
        "schedule-list.json": "schedule list --json",
        **{f"show-{name}-p4-m8.txt": f"schedule show {name} -p 4 -m 8" for name in REGISTRY},
        **{f"show-{name}-p2-m4.json": f"schedule show {name} -p 2 -m 4 --json" for name in REGISTRY},
        "show-1f1b-p4-m6-uneven.txt": "schedule show 1f1b -p 4 -m 6 --cost 1:1:1:2,1,1 --comm 0.5",
        "show-1f1b-p8-m32-folded.txt": "schedule show 1f1b -p 8 -m 32",
        "show-interleaved-1f1b-p4-m6-v3-options.json": (
            "schedule show interleaved-1f1b -p 4 -m 6 -v 3 --option group_size=6 --option extra_warmup=1 --json"
        ),
        "check-broken.txt": "schedule check broken.csv",
        "check-broken.json": "schedule check broken.csv --json",
        "check-torch-1f1b.txt": "schedule check torch-1f1b.csv",
        "check-torch-zbv.txt": "schedule check torch-zbv.csv --blocking",
        "check-blocking.txt": "schedule check blocking.csv --blocking",
        "check-blocking.json": "schedule check blocking.csv --blocking --json",
        "export-1f1b-p3-m4.csv": "schedule export 1f1b -p 3 -m 4 --csv -",
        "export-1f1b-p3-m4-communication.csv": "schedule export 1f1b -p 3 -m 4 --csv - --communication",
        "export-torch-zbv.txt": "schedule export torch-zbv.csv --text -",
        "compare-p4-m8.txt": "schedule compare -p 4 -m 8 --comm 0.5 --memory-cap 6",
        "compare-p4-m6.json": "schedule compare -p 4 -m 6 --json",
        "help.txt": "--help",
        "help-check.txt": "schedule check --help",
        "help-export.txt": "schedule export --help",
        "help-compare.txt": "schedule compare --help",
        "help-show.txt": "schedule show --help",
    }
)


def outputs() -> dict[str, str]:
    """What every command prints on a page of 100 columns, by file name."""
    found = {name: _printed(command.split()) for name, command in COMMANDS.items()}
    found["trace-1f1b-p2-m2.json"] = "".join(chrome_trace([Step(0, measured(ranks=2, microbatches=2))], title="1f1b"))
    return found


def _printed(arguments: list[str]) -> str:
    with chdir(INPUTS), _page() as page, suppress(SystemExit):
        fullbore(arguments)
    return page.getvalue().replace("\r\n", "\n")  # a CSV has PyTorch's line ends; a golden has ours


@contextmanager
def _page() -> Iterator[StringIO]:
    page = StringIO()
    with (
        mock.patch("sys.stdout", page),
        mock.patch("sys.stderr", StringIO()),
        mock.patch.dict("os.environ", {"COLUMNS": "100", "LINES": "24"}),
    ):
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
