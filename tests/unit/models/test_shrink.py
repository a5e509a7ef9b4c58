"""Tiny configurations keep the structure: kinds of layers, ratios that have to hold, what shares with what."""

from __future__ import annotations

from transformers import DeepseekV3Config, Gemma2Config, Gemma3nTextConfig, LlamaConfig, T5Config

from fullbore.models.hugging_face.shrink import certain, narrow, shallow


def test_widths_shrink_and_layers_stay() -> None:
    found = narrow(LlamaConfig(hidden_size=8192, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8))
    assert (found.hidden_size, found.num_hidden_layers, found.num_attention_heads) == (64, 80, 4)
    assert found.num_key_value_heads == 2
    assert narrow(LlamaConfig(num_attention_heads=32, num_key_value_heads=32)).num_key_value_heads == 4


def test_what_is_small_stays() -> None:
    config = LlamaConfig(hidden_size=16, intermediate_size=24, vocab_size=50, num_attention_heads=2, pad_token_id=1)
    found = narrow(config)
    assert (found.hidden_size, found.intermediate_size, found.vocab_size, found.pad_token_id) == (16, 24, 50, 1)


def test_parts_of_a_head_fit_together() -> None:
    found = narrow(DeepseekV3Config())
    assert found.qk_head_dim == found.qk_nope_head_dim + found.qk_rope_head_dim == 16
    assert found.head_dim == found.qk_rope_head_dim


def test_a_shallow_copy_has_every_kind_of_layer() -> None:
    types = ["sliding_attention"] * 20 + ["full_attention"]
    found = shallow(Gemma2Config(num_hidden_layers=21, layer_types=types), 4)
    assert found.layer_types == ["sliding_attention"] * 3 + ["full_attention"]


def test_layers_that_share_keys_still_share_them() -> None:
    found = shallow(Gemma3nTextConfig(), 6)
    assert found.num_hidden_layers == 6
    assert found.num_kv_shared_layers == 2
    assert set(found.layer_types[:4]) == set(found.layer_types[4:]) == {"sliding_attention", "full_attention"}
    assert len(found.intermediate_size) == 6


def test_both_stacks_of_an_encoder_decoder() -> None:
    found = shallow(T5Config(num_layers=24, num_decoder_layers=12), 3)
    assert (found.num_layers, found.num_decoder_layers) == (3, 3)


def test_nothing_is_dropped() -> None:
    found = certain(T5Config(dropout_rate=0.1, classifier_dropout=0.2))
    assert (found.dropout_rate, found.classifier_dropout) == (0.0, 0.0)
