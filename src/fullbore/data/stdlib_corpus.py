"""The default corpus: the sources of the running Python's own standard library.

Real text of several megabytes that every installation has, so the first run needs no download. Its documents are
naturally uneven in length. It differs between Python versions; the fingerprint says which one it was.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

from fullbore.data.document import Document
from fullbore.errors import DataError

__all__ = ["stdlib_documents"]

_LEFT_OUT = {
    "__pycache__",
    "dist-packages",
    "encodings",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "test",
    "tests",
}
"""Tables, tests, installed packages: either repetitive or not the standard library's own."""


def stdlib_documents() -> tuple[Document, ...]:
    """Every ``.py`` file, sorted by its path relative to the library."""
    root = Path(sysconfig.get_path("stdlib"))
    found = {}
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _LEFT_OUT]
        for file in files:
            path = Path(folder, file)
            if path.suffix == ".py":
                found[path.relative_to(root).as_posix()] = path
    documents = tuple(Document(name, text) for name, path in sorted(found.items()) if (text := _read_text(path)))
    if not documents:
        raise DataError(
            'data.source "stdlib" needs the sources of the standard library, and this Python has none in '
            f"{root}; set data.source to a folder of text"
        )
    return documents


def _read_text(path: Path) -> bytes:
    """Empty for the odd file that is not UTF-8: unlike the user's own files, nobody could mend it."""
    content = path.read_bytes()
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return b""
    return b"" if b"\0" in content else content
