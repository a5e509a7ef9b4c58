"""Adapters of `peft` on a Hugging Face model: low-rank matrices beside frozen weights.

A `PeftModel` puts adapters into the modules of a model and calls it as it is. So the model inside is split, with the
adapters in its blocks, under the names that the `PeftModel` gives its parameters.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from fullbore.errors import ModelError

__all__ = ["Adapters", "inside"]


@dataclass(frozen=True, slots=True)
class Adapters:
    """What a `PeftModel` adds to the model inside."""

    configs: Mapping[str, Any]
    """Name of an adapter -> its configuration."""

    @classmethod
    def of(cls, model: Any) -> Adapters | None:
        """Of a `PeftModel`; None for any other.

        Raises:
            ModelError: it changes the inputs of the model (prompt tuning), which every stage reads.
        """
        if isinstance(model, PreTrainedModel):
            return None
        for config in model.peft_config.values():
            if config.is_prompt_learning:
                raise ModelError(
                    f"fullbore splits models with adapters inside their layers; {config.peft_type.value} puts tokens "
                    "in front of the inputs; use LoRA"
                )
        return cls(dict(model.peft_config))

    def put_into(self, model: Any) -> Any:
        """The same adapters in another model of the same structure; gives that back."""
        from peft import get_peft_model

        (first, config), *others = self.configs.items()
        with warnings.catch_warnings(action="ignore"):  # the user has seen them where the adapters were made
            wrapped = get_peft_model(model, copy.deepcopy(config), adapter_name=first)
            for name, other in others:
                wrapped.add_adapter(name, copy.deepcopy(other))
        return inside(wrapped)


def inside(model: Any) -> Any:
    """The `PreTrainedModel` in a `PeftModel`; itself, of one.

    Raises:
        ModelError: it is neither.
    """
    found = model if isinstance(model, PreTrainedModel) else _base(model)
    if not isinstance(found, PreTrainedModel):
        raise ModelError(f"a Hugging Face model is a PreTrainedModel or a PeftModel (given {type(model).__name__})")
    return found


def _base(model: Any) -> Any:
    if any(kind.__name__ == "PeftModel" for kind in type(model).__mro__):
        return model.get_base_model()
    return None
