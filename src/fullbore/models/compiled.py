"""Compilation: a layer's own forward becomes one that `torch.compile` has made, inside of the pipeline's wrappers.

Keys, recomputation, messages and gradients around it stay as they are: each layer is compiled by itself, its backward
with it, and equal layers share what was made. Sizes are symbolic, so another length in a later microbatch does not
compile again. Random numbers are drawn as without compilation, so masks are the same.

The first step compiles, and takes long: on a CPU inductor writes C++ and calls a compiler.
"""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from fullbore.errors import ModelError

__all__ = ["apply_compile", "require_compiler"]

_OPTIONS: dict[str, str | int | bool | Callable[..., Any]] = {"fallback_random": True}


def require_compiler(device: torch.device) -> None:
    """Raises ModelError where what inductor needs for this device is not installed."""
    if device.type == "cpu":
        compiler = os.environ.get("CXX", "g++")
        if shutil.which(compiler) is None:  # inductor too runs all of CXX as the name of one program
            raise ModelError(
                f"compiling layers on a CPU needs a C++ compiler, and there is no {compiler!r}; install g++, set CXX "
                "to the name of one (without a wrapper such as ccache before it), or leave model.compile at false"
            )
    elif device.type == "cuda" and find_spec("triton") is None:
        raise ModelError("compiling layers on a GPU needs triton; install it, or leave model.compile at false")


def apply_compile(layers: Mapping[str, nn.Module], *, device: torch.device) -> Callable[[], None]:
    """Compile the forward of every module of ``layers``, when it is first called. Returns what takes it back.

    Apply it before random keys and recomputation.

    Raises:
        ModelError: as `require_compiler`.
    """
    require_compiler(device)
    before: dict[nn.Module, Any] = {}
    for module in layers.values():
        if module not in before:
            before[module] = vars(module).get("forward")
            module.forward = _CompiledForward(module.forward)

    def undo() -> None:
        for module, own in before.items():
            if own is None:
                vars(module).pop("forward", None)
            else:
                module.forward = own

    return undo


class _CompiledForward:
    """A module's forward, compiled when it is first called: importing the compiler takes seconds."""

    def __init__(self, inner: Callable[..., Any]) -> None:
        self._inner = inner
        self._compiled: Callable[..., Any] | None = None

    def __deepcopy__(self, memo: dict[int, object]) -> Any:
        """A copy of the module is in no pipeline."""
        return copy.deepcopy(self._inner, memo)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._compiled is None:
            import torch._functorch.config as functorch
            import torch._inductor.config as inductor

            inductor.compile_threads = 1  # in this process: a pool would outlive a rank that is killed
            functorch.donated_buffer = False  # a profile runs one graph backward twice
            self._compiled = torch.compile(self._inner, dynamic=True, options=_OPTIONS)
        return self._compiled(*args, **kwargs)
