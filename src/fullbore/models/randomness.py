"""Random numbers that do not depend on the cut: every layer draws from a key of its own.

Before a layer's module runs for microbatch i of step s, torch's generators are seeded from a hash of
(seed, s, i, layer name, part); when the microbatch's action is over they are put back as they were. So a
dropout mask is the same for every number of stages, for every order in which microbatches run, on whichever rank, and
when the forward runs again in the backward. (One stream for a rank gives masks that change with the number of
stages: pytorch #55036; one seed for all ranks gives layers that are alike: pytorch #139304.)

What a layer draws from a generator of its own, or from Python's or numpy's, is not reached.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["KeyedForward", "RandomKeys", "apply_keys"]


class RandomKeys:
    """The keys of one model on one device. Ranks are processes: torch's generators are global to one."""

    def __init__(self, seed: int, *, device: torch.device) -> None:
        self._seed = seed
        self._generators = [torch.default_generator, *_generator_of(device)]
        self._moment: tuple[int, int] | None = None
        self._outside: list[Tensor] = []

    @property
    def active(self) -> bool:
        """Is a microbatch under way?"""
        return self._moment is not None

    def during(self, *, step: int, microbatch: int) -> AbstractContextManager[None]:
        """What runs inside belongs to this microbatch, counted from the start of the step. The generators are as they
        were afterwards; nothing is touched where no layer runs."""
        return _During(self, (step, microbatch))

    def begin(self, moment: tuple[int, int]) -> None:
        """What `during` does on entering."""
        self._moment = moment

    def end(self) -> None:
        """And on leaving."""
        self._moment = None
        if self._outside:
            for generator, state in zip(self._generators, self._outside, strict=True):
                generator.set_state(state)
            self._outside = []

    def enter(self, layer: str, part: int) -> None:
        """Seed the generators for one part of a layer; outside of `during` nothing happens."""
        if self._moment is None:
            return
        if not self._outside:
            self._outside = self.state()
        key = self.key(layer, part)
        for generator in self._generators:
            generator.manual_seed(key)

    def state(self) -> list[Tensor]:
        """Of every generator, now."""
        return [generator.get_state() for generator in self._generators]

    def key(self, layer: str, part: int) -> int:
        """63 bits of SHA-256 over everything the numbers depend on."""
        assert self._moment is not None
        step, microbatch = self._moment
        text = f"{self._seed}\0{step}\0{microbatch}\0{layer}\0{part}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class _During(AbstractContextManager[None]):
    """Entered around every action: a generator function would take longer than what it wraps."""

    __slots__ = ("_keys", "_moment")

    def __init__(self, keys: RandomKeys, moment: tuple[int, int]) -> None:
        self._keys = keys
        self._moment = moment

    def __enter__(self) -> None:
        self._keys.begin(self._moment)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keys.end()


def apply_keys(parts: Mapping[str, tuple[nn.Module, ...]], keys: RandomKeys) -> Callable[[], None]:
    """Make every part of every layer draw by its key: wraps the modules' own ``forward``. Returns what takes it back.

    Apply it before recomputation, so that the second forward draws by the key again.

    Args:
        parts: layer name -> its modules, in the order they are called.
    """
    wrapped: dict[nn.Module, Any] = {}
    for layer, modules in parts.items():
        for number, module in enumerate(modules):
            if module not in wrapped:
                wrapped[module] = vars(module).get("forward")
                module.forward = KeyedForward(module.forward, keys, layer, number)

    def undo() -> None:
        for module, before in wrapped.items():
            if before is None:
                vars(module).pop("forward", None)
            else:
                module.forward = before

    return undo


class KeyedForward:
    """A module's forward that first enters its key."""

    def __init__(self, inner: Callable[..., Any], keys: RandomKeys, layer: str, part: int) -> None:
        self.inner = inner
        self._keys = keys
        self._layer = layer
        self._part = part

    def __deepcopy__(self, memo: dict[int, object]) -> Any:
        """A copy of the module is in no pipeline."""
        return copy.deepcopy(self.inner, memo)

    @property
    def replays(self) -> bool:
        """Does running it again give the same numbers by itself?"""
        return self._keys.active

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._keys.enter(self._layer, self._part)
        return self.inner(*args, **kwargs)


def _generator_of(device: torch.device) -> list[torch.Generator]:
    if device.type != "cuda":
        return []
    torch.cuda.init()  # type: ignore[no-untyped-call]
    index = device.index if device.index is not None else torch.cuda.current_device()
    return [torch.cuda.default_generators[index]]
