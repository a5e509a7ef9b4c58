"""What is known of families of Hugging Face models beside what transformers itself says of them.

transformers says for about half of its causal language models which modules follow each other (a pipeline plan). For
the families here one line says where their blocks are; the rest follows from running a tiny copy, and the same copy is
split and compared before anything is trained (`fullbore.models.hugging_face.probe`).
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["BLOCKS", "UNSPLITTABLE"]

_ENCODER_DECODER = ("model.encoder.layers", "model.decoder.layers")
_T5 = ("encoder.block", "decoder.block")

BLOCKS: Mapping[str, tuple[str, ...]] = {
    "bart": _ENCODER_DECODER,
    "biogpt": ("biogpt.layers",),
    "bitnet": ("model.layers",),
    "blenderbot": _ENCODER_DECODER,
    "bloom": ("transformer.h",),
    "ctrl": ("transformer.h",),
    "falcon": ("transformer.h",),
    "falcon_mamba": ("backbone.layers",),
    "gpt2": ("transformer.h",),
    "gpt_bigcode": ("transformer.h",),
    "gpt_neo": ("transformer.h",),
    "gpt_neox_japanese": ("gpt_neox_japanese.layers",),
    "granitemoe": ("model.layers",),
    "granitemoe_swa": ("model.layers",),
    "granitemoeshared": ("model.layers",),
    "hunyuan_v1_dense": ("model.layers",),
    "jamba": ("model.layers",),
    "jetmoe": ("model.layers",),
    "lfm2": ("model.layers",),
    "lfm3": ("model.layers",),
    "llama4_text": ("model.layers",),
    "longt5": _T5,
    "m2m_100": _ENCODER_DECODER,
    "mamba": ("backbone.layers",),
    "marian": _ENCODER_DECODER,
    "mbart": _ENCODER_DECODER,
    "modernbert-decoder": ("model.layers",),
    "mpt": ("transformer.blocks",),
    "mt5": _T5,
    "mvp": _ENCODER_DECODER,
    "nanochat": ("model.layers",),
    "nemotron": ("model.layers",),
    "nemotron_h": ("model.layers",),
    "nllb-moe": _ENCODER_DECODER,
    "olmoe": ("model.layers",),
    "opt": ("model.decoder.layers",),
    "pegasus": _ENCODER_DECODER,
    "persimmon": ("model.layers",),
    "phimoe": ("model.layers",),
    "plbart": _ENCODER_DECODER,
    "rwkv": ("rwkv.blocks",),
    "stablelm": ("model.layers",),
    "t5": _T5,
    "umt5": _T5,
}
"""Family -> full names of its lists of blocks, in the order of the forward."""

UNSPLITTABLE: Mapping[str, str] = {
    "hrm_text": "it runs its layers in nested loops",
}
"""Families that cannot be cut between two blocks."""
