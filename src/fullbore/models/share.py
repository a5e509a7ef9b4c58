"""Stages of one rank share what they have in common: a tied weight that two of them use is one parameter there.

Each stage is built by itself, with its own copy of a tied weight. Two copies on one rank would be two optimizer
entries for one weight, and under one name the second would hide the first. As one parameter, autograd sums the
gradients of both stages, and the optimizer, the norm and a checkpoint see it once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from fullbore.ids import StageIndex
from fullbore.models.layered import BuiltStage

__all__ = ["share_weights"]


def share_weights(stages: Mapping[StageIndex, BuiltStage]) -> dict[StageIndex, BuiltStage]:
    """The stages of one rank with one parameter for each name. Modules are changed in place."""
    held: dict[str, nn.Parameter] = {}
    shared: dict[StageIndex, BuiltStage] = {}
    for index, stage in stages.items():
        copies: dict[int, nn.Parameter] = {}
        for name, weight in stage.weights.items():
            first = held.setdefault(name, weight)
            if first is not weight:
                assert torch.equal(first, weight), f"the copies of {name} on one rank start with different values"
                copies[id(weight)] = first
        for module in stage.module.modules() if copies else ():
            for local, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
                if id(parameter) in copies:
                    setattr(module, local, copies[id(parameter)])
        shared[index] = replace(stage, weights={name: held[name] for name in stage.weights})
    return shared
