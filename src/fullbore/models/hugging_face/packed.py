"""Whether a model sees the documents of one row each alone, given position ids that start again at 0.

transformers makes a block-diagonal causal mask from position ids where there is no attention mask, for the attention
implementations that work with masks, and for families that make their masks its common way. Layers with a state
(Mamba, linear attention), convolutions over time and positions by distance do not stop at the edge of a document. What
a family does is found out and not looked up: documents in one row against each alone, on a narrow copy. Rounding is
some 1e-6 there, and what one document reads from another 0.1 and more.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from fullbore.errors import ModelError
from fullbore.models.hugging_face.model import HuggingFaceModel
from fullbore.models.hugging_face.shrink import narrow
from fullbore.models.layered import LayeredModel

__all__ = ["require_packable"]

_LENGTHS = (9, 1, 6)
_TOLERANCE = 1e-4


def require_packable(model: LayeredModel) -> None:
    """Raises ModelError where documents in one row are not as alone; names the family and what to use instead."""
    instead = 'use data.documents = "padded", or "joined"'
    if not isinstance(model, HuggingFaceModel):
        raise ModelError(
            f"packed documents are told apart by position ids, which only a Hugging Face model reads "
            f"({model.description}); {instead}"
        )
    family = model.config.model_type
    try:
        error = _largest_error(model)
    except Exception as problem:
        raise ModelError(
            f"{family} cannot take packed documents: a small copy of it fails on position ids "
            f"({type(problem).__name__}: {problem}); {instead}"
        ) from problem
    if not error <= _TOLERANCE:
        raise ModelError(
            f"{family} cannot take packed documents: in one row they are not as each alone (logits of a small copy "
            f"differ by {error:.1e} of the largest), so one reads from another; {instead}"
        )


def _largest_error(model: HuggingFaceModel) -> float:
    """max |difference| / max |reference| over the logits of all documents."""
    config = narrow(model.config)
    with torch.random.fork_rng(devices=()), torch.device("cpu"):
        torch.manual_seed(0)
        copy = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        documents = [torch.randint(4, config.get_text_config().vocab_size, (1, length)) for length in _LENGTHS]
    positions = torch.cat([torch.arange(length) for length in _LENGTHS])[None]
    with torch.no_grad():
        row: Tensor = copy(input_ids=torch.cat(documents, dim=1), position_ids=positions, use_cache=False).logits
        alone = torch.cat([copy(input_ids=document, use_cache=False).logits for document in documents], dim=1)
    return float((row - alone).abs().max() / alone.abs().max())
