"""The pipeline of a scenario."""

from __future__ import annotations

from typing import Any

from fullbore.runtime.device import CpuDevice
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.pipeline import Pipeline


def pipeline_of(model: Any, mesh: Mesh, *, microbatches: int = 2, **more: Any) -> Pipeline:
    """``more`` as `Pipeline` takes it: an ``objective`` too, where the model brings none."""
    return Pipeline(model, num_microbatches=microbatches, device=CpuDevice(), mesh=mesh, **more)
