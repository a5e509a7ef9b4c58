"""A folder of text files: one document a file, in the order of their relative paths."""

from __future__ import annotations

from pathlib import Path

from fullbore.data.document import Document, need_text
from fullbore.errors import DataError

__all__ = ["text_documents"]


def text_documents(path: Path) -> tuple[Document, ...]:
    """Every file under ``path`` (or the one file ``path``). Hidden files and empty ones are passed over."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    documents = []
    for file in files:
        name = file.name if file == path else file.relative_to(path).as_posix()
        if any(part.startswith(".") for part in name.split("/")):
            continue
        text = need_text(file.read_bytes(), name=str(file))
        if text:
            documents.append(Document(name, text))
    if not documents:
        raise DataError(f"data.source {path} has no text: no file that is neither hidden nor empty")
    return tuple(documents)
