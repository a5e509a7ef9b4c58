"""What makes equality impossible, found before the run and said: random numbers that no key reaches, batch statistics,
reduced precision.

Dropout is no such thing: pipeline and reference draw every layer's masks by the same keys (`models/randomness.py`). But
a layer may draw from a generator of its own, and a model's forward may draw between its layers. Both are found by
running the unsplit model a few times under chosen keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from fullbore.config.run import RunConfig
from fullbore.errors import ModelError
from fullbore.models.layered import LayeredModel, Microbatch, Objective, WholeModel
from fullbore.models.randomness import RandomKeys, apply_keys
from fullbore.verify.reference import load
from fullbore.verify.report import NotComparable

__all__ = ["Randomness", "comparable_config", "not_comparable", "probe_randomness"]

_SAME = 1e-6
"""Two losses this close, relatively, come from the same random numbers: a changed mask moves one by far more."""


@dataclass(frozen=True, slots=True)
class Randomness:
    """What the model draws in training."""

    keyed: bool
    """It draws something, and all of it by keys."""

    unkeyed: str | None
    """What no key reaches; None where there is nothing of the kind."""

    @property
    def notes(self) -> list[NotComparable]:
        if self.unkeyed is not None:
            why = "the pipeline cannot draw the same; verified in evaluation mode, where the model is not random"
            return [NotComparable(self.unkeyed, why)]
        if self.keyed:
            return [NotComparable("the batch undivided", "random masks are drawn for each microbatch")]
        return []


def comparable_config(config: RunConfig) -> tuple[RunConfig, list[NotComparable]]:
    """The configuration with what cannot be compared turned off, and a note for each such thing."""
    section = config.model
    if section.dtype not in ("bfloat16", "float16"):
        return config, []
    why = "rounding differs with every order of summation; verified in float32 instead"
    section = msgspec.structs.replace(section, dtype="float32")
    return msgspec.structs.replace(config, model=section), [NotComparable(config.model.dtype, why)]


def not_comparable(module: nn.Module) -> list[NotComparable]:
    """What in a built model depends on how the batch is cut."""
    kinds = {type(part).__name__ for part in module.modules()}
    batch_norms = sorted(kind for kind in kinds if kind.startswith(("BatchNorm", "SyncBatchNorm")))
    if not batch_norms:
        return []
    why = (
        "a batch-dependent layer: statistics are taken per microbatch, so the undivided batch differs by design; "
        "compared against one process running the same microbatches"
    )
    return [NotComparable(", ".join(batch_norms), why)]


def probe_randomness(
    model: LayeredModel,
    microbatch: Microbatch,
    *,
    objective: Objective,
    values: Mapping[str, Tensor],
    device: torch.device,
) -> Randomness:
    """Run the unsplit model a few times on one microbatch.

    Args:
        values: weights and buffers by full name.

    Raises:
        ModelError: it is random in evaluation mode too, so that nothing at all can be compared.
    """
    probe = _Probe(model.whole(), microbatch, objective=objective, values=values, device=device)
    unkeyed = probe.unkeyed()
    if unkeyed is None:
        return Randomness(keyed=not _same(probe.loss(step=1), probe.loss(step=2)), unkeyed=None)
    probe.evaluate()
    still = probe.unkeyed()
    if still is not None:
        raise ModelError(
            f"a model that is random in evaluation mode as well cannot be compared ({still}); draw from torch's own "
            "generators inside of layers, or not at all in evaluation mode"
        )
    return Randomness(keyed=False, unkeyed=unkeyed)


class _Probe:
    """The unsplit model with its layers keyed, and watched for draws between them."""

    def __init__(
        self,
        whole: WholeModel,
        microbatch: Microbatch,
        *,
        objective: Objective,
        values: Mapping[str, Tensor],
        device: torch.device,
    ) -> None:
        self._whole = whole
        self._objective = objective
        self._microbatch = {name: tensor.to(device) for name, tensor in microbatch.items()}
        self._keys = RandomKeys(0, device=device)
        load(whole.module.to(device), values)
        apply_keys(whole.parts, self._keys)
        self._left = self._keys.state()
        self._between: list[str] = []
        for layer, modules in whole.parts.items():
            for part in modules:
                part.register_forward_pre_hook(self._entering(layer))
                part.register_forward_hook(self._leaving)

    def evaluate(self) -> None:
        self._whole.module.eval()

    def loss(self, *, step: int) -> float:
        self._left = self._keys.state()
        with torch.no_grad(), self._keys.during(step=step, microbatch=0):
            loss = self._objective.loss_sum(self._whole.call(self._microbatch), self._microbatch)
            self._look("after the last layer")
        return float(loss)

    def unkeyed(self) -> str | None:
        """What equal keys do not make equal."""
        self._between.clear()
        equal = _same(self.loss(step=1), self.loss(step=1))
        if self._between:
            return f"random numbers drawn outside of the layers ({self._between[0]})"
        return None if equal else "random numbers that are not drawn from torch's own generators"

    def _entering(self, layer: str) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            del module, args
            self._look(f"before {layer!r}")

        return hook

    def _leaving(self, module: nn.Module, args: Any, output: Any) -> None:
        del module, args, output
        self._left = self._keys.state()

    def _look(self, where: str) -> None:
        if any(not torch.equal(now, before) for now, before in zip(self._keys.state(), self._left, strict=True)):
            self._between.append(where)


def _same(loss: float, other: float) -> bool:
    return loss == other or abs(loss - other) <= _SAME * abs(other) or (loss != loss and other != other)
