"""A folder written by Hugging Face datasets (``save_to_disk``): one document a row, from the column ``text``.

Needs the extra ``fullbore[datasets]``. Nothing is downloaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fullbore.data.document import Document, need_text
from fullbore.errors import DataError

__all__ = ["datasets_documents", "is_datasets_folder"]


def is_datasets_folder(path: Path) -> bool:
    """Whether `datasets` wrote it: a dataset (``state.json``) or several splits (``dataset_dict.json``)."""
    return (path / "dataset_dict.json").is_file() or (path / "dataset_info.json").is_file()


def datasets_documents(path: Path) -> tuple[Document, ...]:
    """The rows in order; of a folder with several splits, those of ``train``. Empty rows are passed over."""
    try:
        from datasets import DatasetDict, load_from_disk
    except ImportError:
        raise DataError(
            f"data.source {path} was written by Hugging Face datasets; install fullbore[datasets]"
        ) from None
    try:
        rows: Any = load_from_disk(str(path))
    except Exception as error:
        raise DataError(f"Hugging Face datasets cannot read data.source {path}: {error}") from error
    if isinstance(rows, DatasetDict):
        if "train" not in rows:
            raise DataError(f"data.source {path} needs a split named train (it has {', '.join(rows)})")
        rows = rows["train"]
    if "text" not in rows.column_names:
        raise DataError(f"data.source {path} needs a column named text (it has {', '.join(rows.column_names)})")
    documents = []
    for number, text in enumerate(rows["text"]):
        if text:
            where = f"row {number}"
            documents.append(Document(where, need_text(text.encode(), name=f"{path}, {where}")))
    if not documents:
        raise DataError(f"data.source {path} has no row with text")
    return tuple(documents)
