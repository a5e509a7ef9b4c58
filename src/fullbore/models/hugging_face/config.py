"""Hugging Face configurations: from a folder, built in, and with some values overridden."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoConfig, LlamaConfig

from fullbore.errors import ModelError
from fullbore.models.hugging_face.folder import need_config
from fullbore.nearest import nearest

__all__ = ["builtin_config", "override", "read_config"]


def builtin_config(*, vocab_size: int) -> Any:
    """A Llama of 8 blocks of width 256 (6.3 million parameters beside its vocabulary): small enough for a laptop."""
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=None,
    )


def read_config(folder: Path) -> Any:
    """The configuration in ``folder/config.json``; nothing is fetched.

    Raises:
        ModelError: there is none, or transformers does not know its kind.
    """
    path = need_config(folder)
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise ModelError(f"transformers cannot read {path}: {error}") from error


def override(config: Any, values: Mapping[str, Any]) -> Any:
    """A new configuration with ``values`` in place of its own.

    With another number of blocks, a per-layer list (``layer_types``) is cut to it unless it is given as well.

    Raises:
        ModelError: a key that this kind of configuration does not have, or a value it refuses.
    """
    if not values:
        return config
    entries = config.to_dict()
    known = sorted({*entries, *type(config).attribute_map})
    for key in values:
        if key not in known:
            near = nearest(key, known)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ModelError(f"a {config.model_type} configuration has no {key!r} (model.config){hint}")
    entries |= {type(config).attribute_map.get(key, key): value for key, value in values.items()}
    blocks = entries.get("num_hidden_layers")
    types = entries.get("layer_types")
    if "layer_types" not in values and isinstance(types, list) and isinstance(blocks, int) and len(types) != blocks:
        if len(types) < blocks:
            raise ModelError(
                f"layer_types lists one kind per block ({len(types)} listed, num_hidden_layers={blocks}); give both"
            )
        entries["layer_types"] = types[:blocks]
    try:
        return type(config).from_dict(entries)
    except Exception as error:
        raise ModelError(f"{config.model_type} refuses model.config {dict(values)}: {error}") from error
