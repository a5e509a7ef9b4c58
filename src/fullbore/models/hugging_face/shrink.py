"""Tiny copies of a Hugging Face configuration: the same structure in small numbers.

What a model's forward does between its layers follows from its class and from flags, patterns and kinds of layer, not
from its widths. So a narrow copy shows how a model can be split in milliseconds (`narrow`); and for a table of
families a shallow one does, which keeps a layer of every kind (`shallow`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["RANDOM", "certain", "narrow", "shallow"]

RANDOM = ("dropout", "_pdrop", "dropout_rate", "dropout_prob", "jitter_noise", "layerdrop")
"""How the names of probabilities end."""


_AT_MOST: Mapping[str, int] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim_model_base", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("intermediate_size", "n_inner", "d_ff", "ffn_dim", "ffn_hidden_size"), 48),
    **dict.fromkeys(("moe_intermediate_size", "dense_intermediate_size", "expert_ffn_hidden_size"), 40),
    **dict.fromkeys(("shared_expert_intermediate_size", "shared_experts_intermediate_size"), 40),
    **dict.fromkeys(("shared_intermediate_size",), 40),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "swa_num_attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "index_n_heads"), 4),
    **dict.fromkeys(("linear_num_value_heads", "linear_num_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "swa_num_key_value_heads", "linear_num_key_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "swa_head_dim", "index_head_dim", "v_head_dim", "linear_head_dim"), 16),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 16),
    **dict.fromkeys(
        ("qk_nope_head_dim", "qk_rope_head_dim", "rotary_dim", "d_rel", "hidden_size_per_layer_input", "laurel_rank"), 8
    ),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "o_lora_rank", "gated_norm_rank"), 24),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 101),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 8),
    **dict.fromkeys(("zero_expert_num",), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "topk_group"), 2),
    **dict.fromkeys(("n_group", "num_expert_group", "o_groups", "n_shared_experts", "num_shared_experts"), 2),
    **dict.fromkeys(("moe_num_shared_experts",), 2),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "model_max_length"), 64),
    **dict.fromkeys(("original_max_position_embeddings", "rel_extent", "block_size"), 64),
    **dict.fromkeys(("sliding_window", "sliding_window_size", "keep_window_size", "window_size"), 4),
    **dict.fromkeys(("index_topk", "index_topk_blocks", "index_block_size"), 4),
}
"""Attribute -> the most that a narrow copy has of it."""

_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "sep_token_id")

_EQUAL = (
    ("num_key_value_heads", "num_attention_heads"),
    ("head_dim", "qk_rope_head_dim"),
    ("linear_num_key_heads", "linear_num_value_heads"),
)
"""The first follows the second where they were equal."""

_DEPTHS = ("num_hidden_layers", "num_layers", "num_blocks", "depth")
"""Of what a configuration holds for other towers, such as a vision encoder: one layer is enough."""

_PER_LAYER = ("layer_types", "mlp_layer_types", "indexer_types")
"""Lists that say the kind of each layer."""


def narrow(config: Any) -> Any:
    """A copy with small widths, few heads and experts. Numbers and kinds of layers stay.

    Attributes that were equal and have to stay so (heads, the parts of a head that a rotary embedding turns) stay so.
    """
    return _again(config, _narrowed(config.to_dict()))


def shallow(config: Any, num_layers: int) -> Any:
    """A copy with ``num_layers`` layers in each stack, chosen so that each kind of layer is among them where there is
    room."""
    entries = config.to_dict()
    for key in ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers"):
        depth = entries.get(key)
        if not isinstance(depth, int) or depth <= num_layers:
            continue
        shared = entries.get("num_kv_shared_layers") or 0
        kept = _one_of_each(entries, depth=depth, first_shared=depth - shared, num_layers=num_layers)
        for name, value in entries.items():
            if isinstance(value, (list, tuple)) and len(value) == depth:
                entries[name] = [value[index] for index in kept]
        if isinstance(entries.get("per_layer_config"), dict):
            found = {int(index): values for index, values in entries["per_layer_config"].items()}
            entries["per_layer_config"] = {kept.index(index): found[index] for index in kept if index in found}
        if shared:
            entries["num_kv_shared_layers"] = sum(index >= depth - shared for index in kept)
        entries[key] = num_layers
    return _again(config, entries)


def certain(config: Any) -> Any:
    """A copy without dropout."""
    entries = config.to_dict()
    drops = {key: 0.0 for key, value in entries.items() if isinstance(value, float) and key.endswith(RANDOM)}
    return _again(config, entries | drops)


def _narrowed(entries: dict[str, Any]) -> dict[str, Any]:
    made = dict(entries)
    for key, value in entries.items():
        if isinstance(value, bool):
            continue
        if isinstance(value, int) and key in _AT_MOST:
            made[key] = min(value, _AT_MOST[key])
        elif isinstance(value, int) and key in _IDS:
            made[key] = min(value, 3)
        elif isinstance(value, dict) and key == "per_layer_config":
            made[key] = {index: _narrowed(values) for index, values in value.items()}
        elif isinstance(value, dict) and key.endswith("_config"):
            made[key] = _narrowed(value) | {name: min(value[name], 1) for name in _DEPTHS if name in value}
        elif isinstance(value, list) and key == "num_attention_heads_per_layer":
            made[key] = [min(heads, _AT_MOST["num_attention_heads"]) for heads in value]
    for one, other in _EQUAL:
        if isinstance(entries.get(one), int) and entries[one] == entries.get(other):
            made[one] = made[other]
    if isinstance(made.get("qk_head_dim"), int):
        made["qk_head_dim"] = made["qk_nope_head_dim"] + made["qk_rope_head_dim"]
    return made


def _again(config: Any, entries: dict[str, Any]) -> Any:
    made = type(config).from_dict(entries)
    for name in ("_attn_implementation", "_experts_implementation"):
        setattr(made, name, getattr(config, name))
    return made


def _one_of_each(entries: dict[str, Any], *, depth: int, first_shared: int, num_layers: int) -> list[int]:
    """Indices of layers: the first of each kind, then from the front; ascending."""
    lists = [value for name in _PER_LAYER if isinstance(value := entries.get(name), list) and len(value) == depth]
    kinds = [(*(listed[index] for listed in lists), index >= first_shared) for index in range(depth)]
    first = sorted({kind: index for index, kind in reversed(list(enumerate(kinds)))}.values())[:num_layers]
    rest = [index for index in range(depth) if index not in first]
    return sorted([*first, *rest[: num_layers - len(first)]])
