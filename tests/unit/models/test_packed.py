"""Documents in one row: families that keep them apart are told from those that do not."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3NextConfig

from fullbore.errors import ModelError
from fullbore.models.hugging_face.model import HuggingFaceModel
from fullbore.models.hugging_face.packed import require_packable
from fullbore.models.sequential import sequential_model
from tests.unit.models.families import FAMILIES, SIZES


@pytest.mark.parametrize("family", ["llama", "qwen2-tied", "mistral", "gpt_neox"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_families_that_make_their_masks_from_position_ids_take_packed_documents(family: str, attention: str) -> None:
    config = FAMILIES[family].__class__.from_dict(FAMILIES[family].to_dict())
    config._attn_implementation = attention
    require_packable(HuggingFaceModel.from_config(config))


def test_experts_are_chosen_for_each_token_and_see_no_document() -> None:
    require_packable(HuggingFaceModel.from_config(FAMILIES["mixtral"]))


def test_a_family_with_a_state_is_refused_by_name() -> None:
    """Its linear attention goes on from one document to the next, and its loss would look plausible."""
    config = Qwen3NextConfig(**SIZES, num_experts=4, moe_intermediate_size=16, shared_expert_intermediate_size=16)
    with pytest.raises(ModelError, match=r"qwen3_next cannot take packed documents: in one row they are not as each"):
        require_packable(HuggingFaceModel.from_config(config))


def test_a_chain_reads_no_position_ids() -> None:
    chain = sequential_model(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)))
    with pytest.raises(ModelError, match=r'only a Hugging Face model reads .* use data.documents = "padded"'):
        require_packable(chain)
