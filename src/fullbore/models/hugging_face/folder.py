"""The folder that ``model.hf`` names, looked at without transformers, so that it can be done before anything starts."""

from __future__ import annotations

from pathlib import Path

from fullbore.errors import ModelError

__all__ = ["need_config"]


def need_config(folder: Path) -> Path:
    """``folder/config.json``. Raises ModelError where it is not there."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"model.hf is a local folder with a config.json ({folder} has none); download the model first")
    return path
