"""JSON files that people write or copy: whatever is wrong with one becomes one typed error, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fullbore.bounded_file import read_bounded
from fullbore.errors import InputError
from fullbore.written_file import write_whole

__all__ = ["parse_json", "read_json", "write_json"]


def read_json(path: Path, *, what: str, error: type[InputError]) -> Any:
    """The document of a file. ``what`` names it in messages, as "recipe" does.

    Raises:
        error: the file cannot be read, or is not JSON; names it.
    """
    try:
        return parse_json(read_bounded(path).decode("utf-8-sig"))
    except OSError as problem:
        raise error(f"cannot read the {what} {path}: {problem.strerror}") from problem
    except ValueError as problem:
        raise error(f"{path} is not JSON: {problem}") from problem


def parse_json(text: str) -> Any:
    """The document of a text.

    Raises:
        ValueError: it is not JSON, is nested deeper than Python reads, or has half of a surrogate pair for a character.
    """
    try:
        document = json.loads(text)
        if "\\u" in text:
            json.dumps(document, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return document


def write_json(path: Path, document: Any, *, what: str, error: type[InputError]) -> None:
    """Write a document, indented. Raises ``error`` where the file cannot be written."""
    text = json.dumps(document, indent=2) + "\n"
    try:
        write_whole(path, [text])
    except OSError as problem:
        raise error(f"cannot write the {what} {path}: {problem.strerror}") from problem
