"""What a model must be to be held twice.

Weights are made equal and stay so, as every copy takes the same gradient. What a forward writes into a module is not
a gradient: running statistics of two copies would each see half of the microbatches, and neither what one process sees.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from fullbore.errors import ModelError
from fullbore.ir.schedule import Schedule
from fullbore.runtime.mesh import Mesh

__all__ = ["require_mirrorable"]


def require_mirrorable(modules: Iterable[nn.Module], *, schedule: Schedule, mesh: Mesh) -> None:
    """Every rank calls this with its stages; with one stream nothing is asked of them.

    Raises:
        ModelError: on every rank, if any module counts its input into running statistics.
    """
    if schedule.placement.num_streams == 1:
        return
    here = sorted({type(part).__name__ for module in modules for part in module.modules() if _counts(part)})
    found = sorted({name for names in mesh.gather(here) for name in names})
    if found:
        raise ModelError(
            f"{schedule.name} holds the model twice, and {', '.join(found)} keeps running statistics: each copy would see "
            "its own half of the microbatches; use a schedule with one stream, put the layer into evaluation mode first, "
            "or make it with track_running_stats=False"
        )


def _counts(part: nn.Module) -> bool:
    return isinstance(part, _NormBase) and part.training and part.running_mean is not None
