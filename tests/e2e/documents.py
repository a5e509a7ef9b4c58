"""Reads the documents: which commands they show, how each is to be run, and which files they tell the reader to write.

The convention is described in CONTRIBUTING.md, "Documents are tests".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
)

_DIRECTIVE = re.compile(r"<!-- (run|file): (.+?) -->")
_LENGTHENED = re.compile(r"\bfullbore (train|verify|profile)\b")
_HOW = ("compare", "lines", "only", "exists")


@dataclass(frozen=True, slots=True)
class Command:
    """One ``$`` line with the output shown below it."""

    text: str
    shown: tuple[str, ...]
    how: str
    """compare, lines, only or exists."""

    exit_code: int
    slow: bool
    loss_within: float | None = None
    """How far the loss that it prints may be from the one shown; None where that is not compared."""


@dataclass(slots=True)
class Section:
    """Everything under one heading. ``files`` are those the document has shown up to its end."""

    document: Path
    title: str
    files: dict[str, str]
    commands: list[Command] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.document.relative_to(ROOT)}: {self.title}"

    @property
    def slow(self) -> bool:
        return any(command.slow for command in self.commands)


def sections(document: Path) -> list[Section]:
    """The sections of a document in order. A console block that does not say how it is run is an error."""
    lines = document.read_text(encoding="utf-8").splitlines()
    files: dict[str, str] = {}
    found = [Section(document, "top", files)]
    number = 0
    while number < len(lines):
        line = lines[number]
        if line.startswith("## "):
            found.append(Section(document, line.removeprefix("## "), files := dict(files)))
        elif line.startswith("```"):
            end = lines.index("```", number + 1)
            body, before = lines[number + 1 : end], _DIRECTIVE.fullmatch(lines[number - 1] if number else "")
            if before is not None and before[1] == "file":
                files[before[2]] = "\n".join(body) + "\n"
            elif line == "```console":
                where = f"{document.name}:{number + 1}"
                assert before is not None, f"{where}: a console block needs <!-- run: ... --> on the line before it"
                found[-1].commands += _commands(body, directive=before[2], where=where)
            number = end
        number += 1
    return found


def fenced(document: Path, language: str) -> list[str]:
    """The text of every block of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", document.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def headings(document: Path) -> set[str]:
    """The anchors of a document, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(document: Path) -> list[tuple[str, str]]:
    """(relative path, anchor) of every link that stays in the repository."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    return [(path, anchor) for path, _, anchor in (t.partition("#") for t in targets if "://" not in t)]


def _commands(body: list[str], *, directive: str, where: str) -> list[Command]:
    words, _, more = directive.partition(" + ")
    how, *rest = words.split()
    assert how in _HOW, f"{where}: a block is run as one of {', '.join(_HOW)} (given {how!r})"
    exit_code = next((int(word.removeprefix("exit=")) for word in rest if word.startswith("exit=")), 0)
    loss_within = next((float(word.removeprefix("loss=")) for word in rest if word.startswith("loss=")), None)
    unknown = [word for word in rest if word != "slow" and not word.startswith(("exit=", "loss="))]
    assert not unknown, f"{where}: unknown words {unknown}"
    starts = [index for index, line in enumerate(body) if line.startswith("$ ")]
    assert starts, f"{where}: a console block has at least one line that starts with $"
    assert starts[0] == 0, f"{where}: the first line of a console block is a command"
    return [
        Command(
            text=_lengthened(body[start].removeprefix("$ "), more),
            shown=tuple(body[start + 1 : end]),
            how=how,
            exit_code=exit_code,
            slow="slow" in rest,
            loss_within=loss_within,
        )
        for start, end in zip(starts, [*starts[1:], len(body)], strict=True)
    ]


def _lengthened(command: str, more: str) -> str:
    return f"{command} {more}" if more and _LENGTHENED.search(command) else command
