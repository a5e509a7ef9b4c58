"""The files that section ``[data]`` names, looked for before anything is read or started."""

from __future__ import annotations

from pathlib import Path

from fullbore.config.run import DataConfig
from fullbore.errors import DataError

__all__ = ["need_files", "need_source", "need_tokenizer"]


def need_files(config: DataConfig) -> None:
    """Raises DataError for a source or a tokenizer that is not there."""
    if config.source != "stdlib":
        need_source(Path(config.source))
    if config.tokenizer != "bytes":
        need_tokenizer(Path(config.tokenizer))


def need_source(path: Path) -> None:
    """Raises DataError for a text that is not there, or that is a folder where its name promises a file."""
    if not path.exists():
        raise DataError(
            f'data.source {path} does not exist; use "stdlib", a folder of text, a .jsonl file, a .bin file of tokens '
            "or a folder written by Hugging Face datasets"
        )
    if path.suffix in (".bin", ".jsonl") and path.is_dir():
        raise DataError(f"data.source {path} is a folder, and a {path.suffix} is a file; rename the folder")


def need_tokenizer(path: Path) -> None:
    """Raises DataError for a tokenizer that is not there."""
    if not path.is_file():
        raise DataError(
            f'data.tokenizer {path} is not a file; use "bytes" or the path of a tokenizers JSON (tokenizer.json)'
        )
