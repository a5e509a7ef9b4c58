"""How many layers a model has, where that can be read without building it.

A causal language model has its embedding, its blocks and its head as layers. The number of blocks stands in the run
file, in the folder's ``config.json``, or is the built-in model's. Anything else (a factory, a family whose
configuration counts otherwise) is counted by the ranks, once they have the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fullbore.bounded_file import read_bounded
from fullbore.config.run import ModelConfig
from fullbore.json_file import parse_json

__all__ = ["BUILTIN_BLOCKS", "known_layers"]

BUILTIN_BLOCKS = 8
"""Of the model that is trained where the run file names none."""

_BLOCKS = "num_hidden_layers"


def known_layers(model: ModelConfig) -> int | None:
    """Layers, embedding and head among them; None where the model has to be built to know."""
    if model.factory is not None:
        return None
    blocks = model.config.get(_BLOCKS)
    if model.hf is not None:
        document = _document(Path(model.hf) / "config.json")
        if not _is_plain(document):
            return None
        blocks = document.get(_BLOCKS) if blocks is None else blocks
    elif blocks is None:
        blocks = BUILTIN_BLOCKS
    return blocks + 2 if isinstance(blocks, int) and not isinstance(blocks, bool) and blocks >= 0 else None


def _is_plain(document: dict[str, Any]) -> bool:
    """A causal language model that says its blocks under the usual name, and nothing in between."""
    kinds = document.get("architectures") or ["ForCausalLM"]
    return _BLOCKS in document and all(str(kind).endswith("ForCausalLM") for kind in kinds)


def _document(path: Path) -> dict[str, Any]:
    """What cannot be read is for the ranks to complain about: they read it with transformers."""
    try:
        document = parse_json(read_bounded(path).decode())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
