"""What holding a model twice asks of it beside its weights, which `fullbore.runtime.tied` keeps equal.

Buffers start equal. What a forward writes into one is no gradient that could be added up: running statistics of two
copies would each see half of the microbatches, and neither what one process sees; and what is made anew for a longer
sequence, as the frequencies of dynamic rotary embeddings, stays for the shorter ones after it. So these are refused:
those of a known class before anything is computed, any other in the first step or evaluation that changes one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from fullbore.errors import ModelError
from fullbore.ir.schedule import Schedule
from fullbore.models.statistics import counts_its_input
from fullbore.runtime.mesh import Mesh

__all__ = ["BufferWatch", "require_mirrorable", "share_buffers"]


def require_mirrorable(modules: Iterable[nn.Module], *, schedule: Schedule) -> None:
    """With one stream nothing is asked of a rank's stages.

    Raises:
        ModelError: a module counts its input into running statistics, or has a buffer that cannot be made equal.
    """
    if schedule.placement.num_streams == 1:
        return
    parts = [part for module in modules for part in module.modules()]
    found = sorted({type(part).__name__ for part in parts if counts_its_input(part)})
    if found:
        raise ModelError(
            f"{schedule.name} holds the model twice, and {', '.join(found)} keeps running statistics: each copy would "
            "see its own half of the microbatches; use a schedule with one stream, put the layer into evaluation mode "
            "first, or make it with track_running_stats=False"
        )
    for part in parts:
        for name, buffer in part.named_buffers(recurse=False):
            if buffer.layout is not torch.strided:
                raise ModelError(
                    f"{schedule.name} holds the model twice, and {type(part).__name__}.{name} is of layout "
                    f"{buffer.layout}, in which one copy cannot take the other's values; make it dense, or use a "
                    "schedule with one stream"
                )


class BufferWatch:
    """What the forwards of a step or an evaluation do to the buffers of a model that is held twice. Of one that is held
    once nothing is asked."""

    def __init__(self, stages: Iterable[nn.Module], *, schedule: Schedule, mesh: Mesh) -> None:
        self._stages = () if schedule.placement.num_streams == 1 else tuple(stages)
        self._name = schedule.name
        self._mesh = mesh
        self._before: dict[tuple[int, str], tuple[str, Tensor]] = {}

    def begin(self) -> None:
        """A step or an evaluation is about to run."""
        self._before = {place: (said, held.detach().clone()) for place, (said, held) in self._buffers().items()}

    def require_kept(self) -> None:
        """After it. Every rank calls this.

        Raises:
            ModelError: on every rank, if a buffer of any has changed.
        """
        if not self._stages:
            return
        before, after = self._before, self._buffers()
        self._before = {}
        here = {said for place, (said, _) in (before | after).items() if _differ(before.get(place), after.get(place))}
        found = sorted({said for names in self._mesh.gather(here) for said in names})
        if found:
            raise ModelError(
                f"{self._name} holds the model twice, and a forward changes {', '.join(found[:3])}"
                f"{' and more' if len(found) > 3 else ''}: each copy sees its own half of the microbatches, and what "
                "it keeps of them is not what one process keeps; use a schedule with one stream"
            )

    def _buffers(self) -> dict[tuple[int, str], tuple[str, Tensor]]:
        """Stage here and name in it -> what it is called in a message, and its value."""
        return {
            (stage, f"{prefix}.{name}"): (f"{type(part).__name__}.{name}", held)
            for stage, module in enumerate(self._stages)
            for prefix, part in module.named_modules()
            for name, held in part.named_buffers(recurse=False)
        }


def _differ(one: tuple[str, Tensor] | None, other: tuple[str, Tensor] | None) -> bool:
    """In any bit, or is it there only once? (What is not a number differs from itself, but its bits do not.)"""
    if one is None or other is None:
        return True
    (_, before), (_, after) = one, other
    alike = (before.shape, before.dtype, before.layout) == (after.shape, after.dtype, after.layout)
    return not alike or not torch.equal(_bits(before), _bits(after))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


@torch.inference_mode()  # in which a buffer that was made in it may be written too
def share_buffers(buffers: Mapping[str, Tensor], *, schedule: Schedule, mesh: Mesh) -> None:
    """Give every rank that holds a buffer of some name the bits that the first of them has; with one stream no two do.
    (A user's own module may have drawn them without a seed.) Every rank calls this.

    Raises:
        ModelError: on every rank, if a buffer has another shape or repeats itself elsewhere on one rank.
    """
    if schedule.placement.num_streams == 1:
        return
    by_rank = mesh.gather({name: (tuple(buffer.shape), _repeats(buffer)) for name, buffer in buffers.items()})
    owners = {name: rank for rank, forms in reversed(list(enumerate(by_rank))) for name in forms}
    for rank, forms in enumerate(by_rank):
        for name, form in forms.items():
            if form != by_rank[owners[name]][name]:
                raise ModelError(
                    f"{schedule.name} holds the model twice, and {name} has another form on rank {rank} "
                    f"({_said(form)}) than on rank {owners[name]} ({_said(by_rank[owners[name]][name])}); build the "
                    "same model on every rank"
                )
    for name, owner in sorted(owners.items()):
        value = mesh.share(buffers[name].cpu() if mesh.rank == owner else None, owner=owner)
        if name in buffers and mesh.rank != owner:
            assert value is not None, "the owner has one"
            once = tuple(slice(1) if repeats else slice(None) for repeats in _repeats(buffers[name]))
            buffers[name][once].copy_(value[once])  # of an expanded one only what it repeats can be written


def _repeats(tensor: Tensor) -> tuple[bool, ...]:
    """Of each dimension: is it one slice again and again, as `Tensor.expand` makes it?"""
    return tuple(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _said(form: tuple[tuple[int, ...], tuple[bool, ...]]) -> str:
    shape, repeats = form
    expanded = [str(dim) for dim, again in enumerate(repeats) if again]
    return f"{list(shape)}" + (f", expanded over dimension {', '.join(expanded)}" if expanded else "")
