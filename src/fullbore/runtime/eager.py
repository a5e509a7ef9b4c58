"""Engines on eager PyTorch: one that trains with autograd, one that only evaluates.

Between forward and backward a stage holds its input (a leaf) and the *gradient edge* of its output, not the
output: the tensor itself belongs to whoever sends it, so its storage goes as soon as it is sent. This is what
Megatron-LM does by emptying the tensor (`deallocate_output_tensor`), without touching anybody's storage.

A split backward runs autograd's one backward, while the stage's modules leave their weight gradients in a queue
(`fullbore.models.split_backward.weight_split`). The graph is gone after that; the queue holds what is left to do.

Recomputation is of single layers, each a checkpoint in the stage's graph. A recompute action has all of a microbatch's
run again at once, in the order of the forward (`fullbore.models.checkpoints`); where the schedule has none, autograd
runs each when it comes to it. Either way it is the same second forward.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import tree_leaves

from fullbore.errors import ModelError
from fullbore.ids import MicrobatchIndex
from fullbore.ir.action import Kind
from fullbore.models.auxiliary import collecting, num_samples
from fullbore.models.checkpoints import Checkpoints, Watch
from fullbore.models.enter import enter
from fullbore.models.layered import Boundary, Microbatch, Objective, Parcel
from fullbore.models.randomness import RandomKeys
from fullbore.models.split_backward.deferral import Deferral
from fullbore.models.split_backward.weight_queue import WeightQueue

__all__ = ["EagerEngine", "Edge", "EvaluationEngine"]

Edge = Callable[[Microbatch], Boundary]
"""What crosses at one end of the stage."""


@dataclass(frozen=True, slots=True)
class _Stash:
    """What one microbatch leaves between its forward and its backward."""

    roots: tuple[GradientEdge | Tensor | None, ...]
    """Where backward starts: an edge for each output whose gradient comes back (None where nothing in this stage
    needs it), or the loss on the last stage."""

    auxiliary: tuple[Tensor, ...]
    """Where it starts as well: what layers of this stage add to the objective."""

    leaves: tuple[Tensor, ...] | None
    """The inputs whose gradients go upstream; None on the first stage."""

    checkpoints: Checkpoints | None
    """What can run again before the backward; None where the schedule does not ask for it."""


class EagerEngine:
    """Trains one stage.

    ``entrance`` is what comes in, None for the first stage; ``exit`` what goes out, None for the last stage, which
    alone has an ``objective``.
    """

    kinds = frozenset(Kind)

    def __init__(
        self,
        module: nn.Module,
        *,
        entrance: Edge | None,
        exit: Edge | None,
        objective: Objective | None,
        keys: RandomKeys | None = None,
        deferral: Deferral | None = None,
        split: Collection[MicrobatchIndex] | None = None,
        watch: Watch | None = None,
        ahead: Collection[MicrobatchIndex] = (),
    ) -> None:
        """
        Args:
            keys: what the stage's layers draw random numbers by, where they have been told to.
            deferral: through which its modules are told to leave weight gradients for later; without, a backward for
                the input is a whole one.
            split: the microbatches of a round whose backward is split; all where absent.
            watch: through which its recomputed layers are run again before the backward; without, `recompute` has
                nothing to do.
            ahead: the microbatches of a round that will have a `recompute`.
        """
        assert (exit is None) == (objective is not None), "the last stage has the objective, and nothing leaves it"
        self._module = module
        self._entrance = entrance
        self._exit = exit
        self._objective = objective
        self._keys = keys
        self._deferral = deferral
        self._split = split
        self._watch = watch if watch is not None else Watch()
        self._ahead = ahead
        self._stash: dict[MicrobatchIndex, _Stash] = {}
        self._owed: dict[MicrobatchIndex, WeightQueue] = {}
        self._global_count = 0
        self._num_samples = 0
        self._loss_scale = 1.0
        self._step = 1
        self.first_microbatch = 0
        """The number within the step of what the executor calls microbatch 0: a step may take several rounds."""
        self.loss_sum: Tensor | None = None
        """What the last stage's losses add up to so far, on the stage's device: reading it is for after the step."""
        self.auxiliary_loss: Tensor | None = None
        """What this stage's layers have added to the loss, each with its microbatch's share; as `loss_sum`."""

    def begin(
        self, global_count: int, *, num_samples: int | None = None, step: int = 1, loss_scale: float = 1.0
    ) -> None:
        """Start a step whose loss is a mean over ``global_count`` items of the whole global batch.

        Args:
            num_samples: rows of the global batch, for auxiliary losses; as many as items where absent.
            step: its number, for random keys.
            loss_scale: what the loss is multiplied by before backward; `loss_sum` is not.
        """
        assert self.num_live == 0, "a microbatch of the last step has had no backward"
        self._global_count = global_count
        self._num_samples = num_samples if num_samples is not None else global_count
        self._step = step
        self._loss_scale = loss_scale
        self.first_microbatch = 0
        self.loss_sum = None
        self.auxiliary_loss = None
        if self._deferral is not None:
            self._deferral.begin()

    @property
    def num_live(self) -> int:
        return len(self._stash) + len(self._owed)

    @property
    def held_bytes(self) -> int:
        return sum([queue.num_bytes for queue in self._owed.values()])

    def forward(self, index: MicrobatchIndex, microbatch: Microbatch, carried: Parcel | None) -> Parcel | None:
        given = carried
        leaves: tuple[Tensor, ...] | None = None
        checkpoints = Checkpoints() if index in self._ahead else None
        with torch.enable_grad(), self._moment(index):
            if carried is not None:
                assert self._entrance is not None
                specs = self._entrance(microbatch).tensors
                all_leaves = [t.detach().requires_grad_(s.gradient) for t, s in zip(carried, specs, strict=True)]
                leaves = tuple(leaf for leaf in all_leaves if leaf.requires_grad)
                for leaf, spec in zip(all_leaves, specs, strict=True):
                    if spec.cut_off:
                        leaf.requires_grad_().register_hook(_unexpected)  # type: ignore[no-untyped-call]
                given = tuple(enter(leaf) if leaf.requires_grad else leaf for leaf in all_leaves)
            with collecting() as added, self._splitting(index), self._watching(checkpoints):
                output = self._module(given, microbatch)
            auxiliary = self._weighed(added, microbatch)
            if self._objective is None:
                self._stash[index] = _Stash(self._edges(microbatch, output), auxiliary, leaves, checkpoints)
                return tuple(tensor.detach().contiguous() for tensor in output)
            with self._splitting(index):
                loss_sum = _checked(self._objective.loss_sum(output, microbatch), output)
            count = self._global_count / self._loss_scale
            loss = loss_sum / count if count else loss_sum * 0.0
        roots = (loss if loss.requires_grad else None,)
        self._stash[index] = _Stash(roots, auxiliary, leaves, checkpoints)
        self.loss_sum = _added(self.loss_sum, loss_sum)
        return None

    def _edges(self, microbatch: Microbatch, output: Parcel) -> tuple[GradientEdge | None, ...]:
        """Of the tensors whose gradients come back."""
        assert self._exit is not None
        specs = self._exit(microbatch).tensors
        return tuple(
            get_gradient_edge(tensor) if tensor.requires_grad else None
            for tensor, spec in zip(output, specs, strict=False)  # the executor says what does not fit
            if spec.gradient
        )

    def _weighed(self, added: Sequence[Tensor], microbatch: Microbatch) -> tuple[Tensor, ...]:
        """Auxiliary losses with the microbatch's share of the samples: notes them, and gives where backward starts."""
        share = num_samples(microbatch) / self._num_samples if added else 0.0
        for value in added:
            self.auxiliary_loss = _added(self.auxiliary_loss, value.detach().double() * share)
        return tuple(_wide(value) * (share * self._loss_scale) for value in added if value.requires_grad)

    def _splitting(self, index: MicrobatchIndex, queue: WeightQueue | None = None) -> AbstractContextManager[None]:
        """Inside, the stage's modules know what is to come of their weight gradients; a layer that runs its forward
        again in the backward does as in the first."""
        if self._deferral is None or not (self._split is None or index in self._split):
            return nullcontext()
        return self._deferral.during(queue)

    def _watching(self, checkpoints: Checkpoints | None) -> AbstractContextManager[None]:
        return nullcontext() if checkpoints is None else self._watch.during(checkpoints)

    def _moment(self, index: MicrobatchIndex) -> AbstractContextManager[None]:
        if self._keys is None:
            return nullcontext()
        return self._keys.during(step=self._step, microbatch=self.first_microbatch + index)

    def backward(self, index: MicrobatchIndex, gradients: Parcel | None) -> Parcel | None:
        onward = self.backward_input(index, gradients)
        self.backward_weight(index)
        return onward

    def backward_input(self, index: MicrobatchIndex, gradients: Parcel | None) -> Parcel | None:
        stash = self._stash.pop(index)
        self._owed[index] = queue = WeightQueue()
        with self._splitting(index, queue):
            self._back(index, stash, gradients)
        return None if stash.leaves is None else tuple(_taken(leaf) for leaf in stash.leaves)

    def backward_weight(self, index: MicrobatchIndex) -> None:
        self._owed.pop(index).run()

    def recompute(self, index: MicrobatchIndex) -> None:
        checkpoints = self._stash[index].checkpoints
        assert checkpoints is not None, "the engine was not told that this microbatch has a recompute"
        with self._moment(index), self._splitting(index, WeightQueue()):
            checkpoints.run()

    def _back(self, index: MicrobatchIndex, stash: _Stash, gradients: Parcel | None) -> None:
        given: Sequence[Tensor | None] = (None,) if gradients is None else gradients
        pairs = [(root, gradient) for root, gradient in zip(stash.roots, given, strict=True) if root is not None]
        pairs += [(loss, None) for loss in stash.auxiliary]
        if pairs:
            roots = [root for root, _ in pairs]
            ahead = nullcontext() if stash.checkpoints is None else stash.checkpoints.used()
            with self._moment(index), ahead:
                torch.autograd.backward(roots, [gradient for _, gradient in pairs])  # type: ignore[arg-type]


class EvaluationEngine:
    """Runs forward only, in evaluation mode, and sums the loss on the last stage. Keeps no activation."""

    kinds = frozenset({Kind.FORWARD})
    num_live = 0
    held_bytes = 0

    def __init__(self, module: nn.Module, *, objective: Objective | None) -> None:
        self._module = module
        self._objective = objective
        self.loss_sum: Tensor | None = None
        self._modes: dict[nn.Module, bool] = {}

    def begin(self) -> None:
        """Start a new sum, and put every module into evaluation mode until `end`."""
        self.loss_sum = None
        self._modes = {part: part.training for part in self._module.modules()}
        self._module.eval()

    def end(self) -> None:
        """Give every module the mode it had; parts may differ (a frozen BatchNorm)."""
        for part, training in self._modes.items():
            part.training = training
        self._modes = {}

    def forward(self, index: MicrobatchIndex, microbatch: Microbatch, carried: Parcel | None) -> Parcel | None:
        del index
        with torch.no_grad():
            output = self._module(carried, microbatch)
            if self._objective is None:
                return tuple(tensor.contiguous() for tensor in output)
            loss_sum = _one_number(self._objective.loss_sum(output, microbatch))
        self.loss_sum = _added(self.loss_sum, loss_sum)
        return None

    def backward(self, index: MicrobatchIndex, gradients: Parcel | None) -> Parcel | None:
        raise AssertionError("an evaluation schedule has no backward")

    def backward_input(self, index: MicrobatchIndex, gradients: Parcel | None) -> Parcel | None:
        raise AssertionError("an evaluation schedule has no backward")

    def backward_weight(self, index: MicrobatchIndex) -> None:
        raise AssertionError("an evaluation schedule has no backward")

    def recompute(self, index: MicrobatchIndex) -> None:
        raise AssertionError("an evaluation schedule has no backward to recompute for")


def _taken(leaf: Tensor) -> Tensor:
    """The gradient that has arrived at a leaf; zeros where none of its uses needed it."""
    gradient, leaf.grad = leaf.grad, None
    return torch.zeros_like(leaf) if gradient is None else gradient.contiguous()


def _unexpected(gradient: Tensor) -> None:
    """The hook of an input that no gradient is expected at, since nobody waits for one."""
    raise ModelError(
        f"whether a layer passes a gradient on follows from its input's shape, but one of {list(gradient.shape)} comes "
        "back to a stage's input that its layers, run without values before the first step, detached; detach always or "
        "never, or build a new pipeline after the change"
    )


def _one_number(loss_sum: Tensor) -> Tensor:
    """The sum as it is. Raises ModelError for anything but a tensor of one number."""
    if not isinstance(loss_sum, Tensor) or loss_sum.numel() != 1:
        given = f"shape {list(loss_sum.shape)}" if isinstance(loss_sum, Tensor) else f"a {type(loss_sum).__name__}"
        raise ModelError(f"Objective.loss_sum gives one number, the sum over counted items (given {given}); use .sum()")
    return loss_sum


def _checked(loss_sum: Tensor, output: Any) -> Tensor:
    """A loss that backward can start from. Raises ModelError for a vector, or one cut off from the output."""
    _one_number(loss_sum)
    if not loss_sum.requires_grad and any(
        leaf.requires_grad for leaf in tree_leaves(output) if isinstance(leaf, Tensor)
    ):
        raise ModelError("Objective.loss_sum gives a number without a gradient; do not detach it or take .item()")
    return _wide(loss_sum).reshape(())


def _wide(loss: Tensor) -> Tensor:
    """In float32 at least: a sum in float16 ends at 65504."""
    return loss if loss.dtype in (torch.float32, torch.float64) else loss.float()


def _added(total: Tensor | None, loss_sum: Tensor) -> Tensor:
    """In float64, and without waiting for the device."""
    wide = loss_sum.detach().double()
    return wide if total is None else total + wide
