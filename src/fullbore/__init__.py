"""fullbore: pipeline-parallel training that accounts for every idle millisecond.

The names below are the public interface. Importing `fullbore` imports no torch; the names that need it are
loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fullbore.config.run import OptimizerConfig
    from fullbore.ir.placement import Placement
    from fullbore.ir.schedule import Schedule
    from fullbore.models.auxiliary import auxiliary_loss
    from fullbore.models.layered import Objective
    from fullbore.models.profile import profile
    from fullbore.models.split_backward.weight_registry import register_weight_split
    from fullbore.models.split_backward.weight_split import WeightSplit
    from fullbore.runtime.optimizer import MasterOptimizer
    from fullbore.runtime.pipeline import Pipeline
    from fullbore.timeline.scale import TimeScale
    from fullbore.timeline.span import Timeline
    from fullbore.timeline.text import render_text

__all__ = [
    "MasterOptimizer",
    "Objective",
    "OptimizerConfig",
    "Pipeline",
    "Placement",
    "Schedule",
    "TimeScale",
    "Timeline",
    "WeightSplit",
    "auxiliary_loss",
    "profile",
    "register_weight_split",
    "render_text",
]

_HOMES = {
    "MasterOptimizer": "fullbore.runtime.optimizer",
    "Objective": "fullbore.models.layered",
    "OptimizerConfig": "fullbore.config.run",
    "Pipeline": "fullbore.runtime.pipeline",
    "Placement": "fullbore.ir.placement",
    "Schedule": "fullbore.ir.schedule",
    "TimeScale": "fullbore.timeline.scale",
    "Timeline": "fullbore.timeline.span",
    "WeightSplit": "fullbore.models.split_backward.weight_split",
    "auxiliary_loss": "fullbore.models.auxiliary",
    "profile": "fullbore.models.profile",
    "register_weight_split": "fullbore.models.split_backward.weight_registry",
    "render_text": "fullbore.timeline.text",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fullbore' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
