"""The global gradient norm, over all stages, and clipping by it.

Each rank knows only its stages. Clipping by a local norm is a known silent fault (pytorch #162638, torchtitan
#596): 2-norms add in squares over ranks, the infinity norm takes the maximum, and a tied weight counts once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fullbore.errors import ConfigError
from fullbore.runtime.mesh import Mesh

__all__ = ["clip", "clip_global_norm", "global_norm", "require_max_norm"]


def clip_global_norm(
    gradients: Mapping[str, Tensor],
    *,
    max_norm: float | None,
    norm_type: float,
    owns: Callable[[str], bool],
    mesh: Mesh,
) -> float:
    """Scale this rank's gradients so that the norm of all is at most ``max_norm``; return the norm before. None only
    measures, and a norm that is not finite leaves them as they are. Every rank calls this.

    Args:
        gradients: by the name of the weight.
        owns: is this the rank that counts this weight? (A tied one has several holders.)
    """
    owned = [gradient for name, gradient in gradients.items() if owns(name)]
    norm = global_norm(owned, mesh=mesh, norm_type=norm_type)
    if max_norm is not None and math.isfinite(norm):
        clip(gradients.values(), norm=norm, max_norm=max_norm)
    return norm


def global_norm(owned: Sequence[Tensor], *, mesh: Mesh, norm_type: float = 2.0) -> float:
    """The norm of all gradients of the model. ``owned`` are this rank's, each weight on exactly one rank.

    Sums squares in float64. Raises ConfigError for a norm other than 2 and infinity.
    """
    owned = [gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in owned]
    if norm_type == 2.0:
        square = 0.0
        if owned:
            norms = torch.stack(torch._foreach_norm(owned, 2, dtype=torch.float64))
            square = float(norms.square().sum())
        return math.sqrt(mesh.sum([square])[0])
    if norm_type == math.inf:
        largest = [gradient.abs().max() for gradient in owned if gradient.numel()]
        mine = float(torch.stack(largest).max()) if largest else 0.0
        return mesh.max([mine if math.isfinite(mine) else math.inf])[0]  # a maximum over ranks may drop a NaN
    raise ConfigError(f"the gradient norm is 2 or infinity (norm_type={norm_type})")


def require_max_norm(max_norm: object) -> None:
    """Raises ConfigError for anything but a number of at least 0, or None."""
    if max_norm is None:
        return
    if isinstance(max_norm, bool) or not isinstance(max_norm, int | float) or not max_norm >= 0:
        raise ConfigError(f"a gradient norm is clipped to a number of at least 0 (max_norm={max_norm!r})")


def clip(gradients: Iterable[Tensor], *, norm: float, max_norm: float) -> None:
    """Scale in place by ``max_norm / (norm + 1e-6)`` where that is below 1, as `torch.nn.utils.clip_grad_norm_`."""
    factor, scaled = max_norm / (norm + 1e-6), list(gradients)
    if factor < 1.0 and scaled:  # a rank without trainable weights has none
        torch._foreach_mul_(scaled, factor)
