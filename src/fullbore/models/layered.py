"""LayeredModel: a model seen as an ordered run of named layers, and the stages cut from it.

Each kind of model that is understood has an adapter that implements `LayeredModel`:
`fullbore.models.hugging_face.model` for transformers' models, with peft's adapters or without, and
`fullbore.models.chain` for an `nn.Sequential` and for modules with a ``pipeline_layers()`` method.
`fullbore.models.load.layered` chooses. The rest of fullbore sees only what is here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fullbore.errors import ModelError
from fullbore.shown import shown

__all__ = [
    "Boundary",
    "BuiltStage",
    "LayeredModel",
    "Microbatch",
    "Objective",
    "Parcel",
    "TensorSpec",
    "TiedWeight",
    "WholeModel",
]

Microbatch = Mapping[str, Tensor]
"""The tensors of one microbatch, first dimension = samples. Every rank holds it: the first stage reads the
inputs, the last the targets, and the ones between derive shapes from it."""


Parcel = tuple[Tensor, ...]
"""What crosses between two layers: the tensors of a tree, in the order of its leaves. The tree itself and its
plain leaves (None, integers, booleans) follow from the model on both ends and do not travel."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a `Parcel`."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    gradient: bool
    """Whether its gradient comes back: a floating-point value that depends on a trainable weight, and that what comes
    after is made from."""

    cut_off: bool = False
    """It depends on a trainable weight and no gradient comes back all the same, since a layer behind detaches it: that
    weight has none, as in one process, and not one of zeros."""

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Boundary:
    """What crosses between two layers for a given microbatch."""

    tensors: tuple[TensorSpec, ...]

    @property
    def gradients(self) -> tuple[TensorSpec, ...]:
        """What comes back: one for each tensor whose gradient is wanted, in the same order."""
        return tuple(spec for spec in self.tensors if spec.gradient)


@dataclass(frozen=True, slots=True)
class Objective:
    """A sum over counted items and their number; the loss is sum / count over the *global* batch.

    Dividing by a count known before the first backward makes gradients right for uneven microbatches without
    a second pass. (Mean-of-means is wrong there: huggingface/transformers #24725.)
    """

    loss_sum: Callable[[Any, Microbatch], Tensor]
    """(what the last layer gives, microbatch) -> scalar, the *sum* over counted items."""

    count: Callable[[Microbatch], int]
    """How many items of the microbatch count; the same on every rank."""

    def __post_init__(self) -> None:
        for name, given in (("loss_sum", self.loss_sum), ("count", self.count)):
            if not callable(given):
                raise ModelError(f"{name} of an Objective is a function (given {name}={shown(repr(given))})")


@dataclass(frozen=True, slots=True)
class TiedWeight:
    """One weight used by several layers. ``name`` is its first full name in the whole model."""

    name: str
    layers: tuple[int, ...]
    """Indices of the layers that use it, ascending; the first one owns it."""


@dataclass(frozen=True, slots=True)
class BuiltStage:
    """A contiguous run of layers on a real device, with only its own weights materialised."""

    module: nn.Module
    """``module(carried, microbatch)``. ``carried`` is None for the first stage, else the `Parcel` that the previous
    stage gave; the last stage gives what `Objective.loss_sum` takes, every other one a `Parcel`."""

    weights: Mapping[str, nn.Parameter]
    """Full name in the whole model -> parameter, in model order. A tied weight stands under its `TiedWeight.name`
    on every stage that uses it, once."""

    buffers: Mapping[str, Tensor]
    layers: tuple[str, ...]
    layer_modules: Mapping[str, nn.Module]
    """Layer name -> the module whose call is that layer's forward. What recomputation and hooks wrap. A layer
    that is not one module call (the embedding or head of some models) is absent."""

    parts: Mapping[str, tuple[nn.Module, ...]]
    """Layer name -> its modules in the order they are called: what draws random numbers under the layer's key. A module
    that is several layers of the model stands under the first one's name."""


@dataclass(frozen=True, slots=True)
class WholeModel:
    """A copy of the unsplit model. Its tensors have no values worth keeping: load them by name."""

    module: nn.Module
    """Parameters and buffers go by their full names."""

    call: Callable[[Microbatch], Any]
    """Microbatch -> what the last stage gives."""

    parts: Mapping[str, tuple[nn.Module, ...]]
    """As in `BuiltStage`, of all layers."""


@runtime_checkable
class LayeredModel(Protocol):
    """What an adapter offers. Holds no weights itself unless the user's module came with them."""

    @property
    def description(self) -> str:
        """One line for people: family, layers, parameters."""

    @property
    def layer_names(self) -> tuple[str, ...]:
        """``embed``, each block, ``head`` for a language model; child names for a Sequential."""

    @property
    def vocab_size(self) -> int | None:
        """Rows of the token embedding; None where the model does not say."""

    @property
    def tied(self) -> tuple[TiedWeight, ...]:
        """Every weight that more than one layer uses."""

    @property
    def objective(self) -> Objective | None:
        """The model's own loss (language models have one); None where the user must give one."""

    def build_stage(self, first_layer: int, end_layer: int, *, seed: int, device: torch.device) -> BuiltStage:
        """The stage of layers ``first_layer`` (inclusive) to ``end_layer`` (exclusive).

        Weights are initialised from (seed, layer name): bitwise the same for every cut. Where the user's module
        came with weights on a real device, those are kept and the seed is not used.
        """

    def whole(self) -> WholeModel:
        """The unsplit model on the CPU, as its author calls it: what parity is measured against."""

    def boundary(self, layer: int, microbatch: Microbatch) -> Boundary:
        """What enters layer ``layer`` (1 or more). Pure arithmetic or a meta-device pass: no weights needed."""
