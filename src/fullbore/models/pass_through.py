"""What stands in a stage for a module that another stage holds."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["PassThrough"]


class PassThrough(nn.Module):
    """Gives back its first argument, and answers for the plain attributes of the module it stands for.

    Layers keep their places in a stage: a model that asks ``self.config.layer_types[i]``, or its layer for
    ``attention_type``, inside the loop gets the same answer as in the whole model. (Shrinking the list shifts
    sliding and full attention silently.)
    """

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        for name, value in vars(original).items():
            if not name.startswith("_") and name not in vars(self) and not isinstance(value, torch.Tensor):
                setattr(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args else next(iter(kwargs.values()))
