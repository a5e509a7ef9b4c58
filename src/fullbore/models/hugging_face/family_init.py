"""The family's own initialiser, applied to one layer at a time.

transformers initialises module by module, children before their parents, each by the model that it lies in: a text
model inside a larger one has an initialiser of its own. What only a constructor sets has no value on the meta device;
where that is a constant, it is taken from a small copy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers import initialization as hf_init

from fullbore.models.hugging_face.pipeline_plan import PipelinePlan
from fullbore.models.hugging_face.tiny import built_small
from fullbore.models.layer import Layer

__all__ = ["FamilyInit"]


class FamilyInit:
    """Of one model on the meta device."""

    def __init__(self, model: Any, plan: PipelinePlan) -> None:
        self._model = model
        self._plan = plan
        self._constants: dict[str, Tensor] | None = None

    def __call__(self, layer: Layer) -> None:
        """Set every tensor of ``layer``, a copy with room for values; random ones from torch's generator."""
        for name, module in layer.parts:
            with hf_init.guard_torch_init_functions():
                module.apply(self._owner(name)._init_weights)
        for key, tensor in (*layer.parameters(), *layer.buffers()):
            if tensor.is_floating_point() and tensor.isnan().all():
                found = self._constant(key)
                if found is not None and found.shape == tensor.shape:
                    tensor.copy_(found)

    def _owner(self, name: str) -> Any:
        """The innermost model around a part: a text model inside a larger one has an initialiser of its own."""
        around = [frame for frame in self._plan.frames if not frame or name == frame or name.startswith(f"{frame}.")]
        found = (self._model.get_submodule(frame) for frame in around)
        return next(module for module in found if isinstance(module, PreTrainedModel))

    def _constant(self, key: str) -> Tensor | None:
        """A number that the constructor puts there, such as a learned activation's: the same in any two models that are
        as small as they can be."""
        if self._constants is None:
            built = [built_small(self._model, seed=seed) for seed in (1, 2)]
            one, other = ({**dict(m.named_parameters()), **dict(m.named_buffers())} for m in built)
            self._constants = {name: t.detach() for name, t in one.items() if torch.equal(t, other[name])}
        return self._constants.get(key)
