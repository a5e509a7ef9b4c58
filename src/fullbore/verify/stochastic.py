"""What makes equality impossible, found and said: batch statistics, dropout, reduced precision."""

from __future__ import annotations

import msgspec
from torch import nn

from fullbore.config.run import RunConfig
from fullbore.models.hugging_face import HuggingFaceModel
from fullbore.models.layered import LayeredModel
from fullbore.verify.report import NotComparable

__all__ = ["comparable_config", "not_comparable", "without_dropout"]

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_DROPOUT_KEYS = (
    *("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "residual_dropout"),
    *("embedding_dropout", "classifier_dropout", "dropout", "emb_dropout", "activation_dropout"),
)


def comparable_config(config: RunConfig, model: LayeredModel) -> tuple[RunConfig, list[NotComparable]]:
    """The configuration with what cannot be compared turned off, and a note for each such thing.

    ``model``: as configured; a Hugging Face model's own configuration says which dropout it has.
    """
    notes: list[NotComparable] = []
    section = config.model
    if section.dtype == "bfloat16":
        notes.append(
            NotComparable("bfloat16", "rounding differs with every order of summation; verified in float32 instead")
        )
        section = msgspec.structs.replace(section, dtype="float32")
    effective = model.config.to_dict() if isinstance(model, HuggingFaceModel) else {}
    dropped = [key for key in _DROPOUT_KEYS if effective.get(key)]
    if dropped:
        notes.append(NotComparable("dropout", f"masks differ with the cut; verified with {', '.join(dropped)} at 0"))
        section = msgspec.structs.replace(section, config={**section.config, **dict.fromkeys(dropped, 0.0)})
    return msgspec.structs.replace(config, model=section), notes


def not_comparable(module: nn.Module) -> list[NotComparable]:
    """What in a built model depends on how the batch is cut or on random state."""
    notes: list[NotComparable] = []
    kinds = {type(part).__name__ for part in module.modules()}
    batch_norms = sorted(kind for kind in kinds if kind.startswith(("BatchNorm", "SyncBatchNorm")))
    if batch_norms:
        notes.append(
            NotComparable(
                ", ".join(batch_norms),
                "statistics are taken per microbatch, so the undivided batch differs by design; "
                "compared against one process running the same microbatches",
            )
        )
    if any(isinstance(part, _DROPOUTS) and part.p > 0 for part in module.modules()):
        notes.append(NotComparable("dropout", "masks differ with the cut; verified with every probability at 0"))
    return notes


def without_dropout(module: nn.Module) -> None:
    """Set every dropout module's probability to 0."""
    for part in module.modules():
        if isinstance(part, _DROPOUTS):
            part.p = 0.0
