"""A JSON-lines file: one document a line, its text under the key ``text``. Other keys are passed over."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fullbore.data.document import Document, need_text
from fullbore.errors import DataError

__all__ = ["jsonl_documents"]


class _Line(msgspec.Struct):
    text: str


def jsonl_documents(path: Path) -> tuple[Document, ...]:
    """The documents in the file's order. A line that holds none is an error that names it."""
    decoder = msgspec.json.Decoder(_Line)
    documents = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{path}, line {number}"
            if not line.strip():
                raise DataError(f'{where}: every line is an object such as {{"text": "..."}}, and this one is empty')
            try:
                text = decoder.decode(line).text
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise DataError(f'{where}: every line is an object such as {{"text": "..."}}: {error}') from None
            if not text:
                raise DataError(f'{where}: "text" is empty; remove the line')
            documents.append(Document(f"line {number}", need_text(text.encode(), name=where)))
    if not documents:
        raise DataError(f'{path} is empty; it needs at least one line such as {{"text": "..."}}')
    return tuple(documents)
