"""Whether a pipeline's arguments are of their kinds, and which device and layers they name.

A wrong one would be noticed deep inside, by something else's name, or never: a word for a flag is true.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

import torch

from fullbore.config.layer_names import require_layers
from fullbore.errors import ConfigError
from fullbore.ir.schedule import Schedule
from fullbore.models.layered import LayeredModel
from fullbore.runtime.device import Device, open_device
from fullbore.runtime.environment import local_rank
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.processes.board import ProgressBoard
from fullbore.shown import shown
from fullbore.timeline.instrument import Instrument

__all__ = ["require_kinds", "required_device", "required_layers"]


def required_device(given: object) -> Device:
    """The device behind a name or a `torch.device`, or the given one.

    Raises:
        ConfigError: something else, or a device that is not there.
    """
    if isinstance(given, str | torch.device):
        return open_device(str(given), local_rank=local_rank())
    if not isinstance(given, Device) or isinstance(given, type):
        raise ConfigError(
            f"device is auto, cpu, cuda, cuda:N, a torch.device or a Device (device={shown(repr(given))})"
        )
    return given


def require_kinds(**given: object) -> None:
    """Raises ConfigError for the first argument of `fullbore.Pipeline` that is not of its kind."""
    for name, value in given.items():
        fits, wanted = _KINDS[name]
        if not fits(value):
            raise ConfigError(f"{name} is {wanted} ({name}={shown(repr(value))})")


def required_layers(model: LayeredModel, recompute: object) -> tuple[str, ...]:
    """The layers to recompute in the order of the model, each once: a set has another order in every process.

    Raises:
        ConfigError: anything but names of layers. The letters of a word in place of a list would be taken for some.
    """
    if (
        isinstance(recompute, str)
        or not isinstance(recompute, Collection)
        or not all(isinstance(name, str) for name in recompute)
    ):
        raise ConfigError(
            f"recompute names layers one by one (given {shown(repr(recompute))}); for example "
            f"recompute={list(model.layer_names[1:3])}"
        )
    require_layers(recompute, layer_names=model.layer_names, setting="recompute")
    return tuple(name for name in model.layer_names if name in set(recompute))


_LONGEST_S = 1e6
"""Of waiting, as in a run file; clocks of days and weeks overflow far beyond it."""


def _is_whole(value: object, *, least: int, below: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < below


def _is_a_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= _LONGEST_S


def _are_options(value: object) -> bool:
    return value is None or (isinstance(value, Mapping) and all(isinstance(name, str) for name in value))


_COUNT = (lambda value: _is_whole(value, least=1), "a whole number of at least 1")
_FLAG = (lambda value: isinstance(value, bool), "True or False")
_KINDS: Mapping[str, tuple[Callable[[object], bool], str]] = MappingProxyType(
    {
        "num_microbatches": _COUNT,
        "accumulation": _COUNT,
        "num_chunks": (
            lambda value: value is None or _is_whole(value, least=1),
            "a whole number of at least 1, or None for the schedule's own",
        ),
        "schedule": (lambda value: isinstance(value, str | Schedule), "a registered name or a Schedule"),
        "schedule_options": (_are_options, 'a mapping of names to whole numbers, as {"group_size": 8}, or None'),
        "recompute_ahead": _FLAG,
        "compile": _FLAG,
        "seed": (
            lambda value: _is_whole(value, least=0, below=2**63),
            "a whole number of at least 0, below 2**63",
        ),
        "timeout_s": (_is_a_time, "a number of seconds above 0, at most 1e6"),
        "instrument": (
            lambda value: value is None or (isinstance(value, Instrument) and not isinstance(value, type)),
            "what has record(span) and step_ended(step), or None",
        ),
        "board": (lambda value: value is None or isinstance(value, ProgressBoard), "a ProgressBoard or None"),
        "mesh": (lambda value: value is None or isinstance(value, Mesh), "a Mesh or None"),
    }
)
"""Argument -> what is one, and in words."""
