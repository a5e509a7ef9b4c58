"""Mesh: the ranks of a run and their axes, as PyTorch's DeviceMesh. fullbore owns the pipeline axis.

Every axis has a name from the start (pipeline, data, context, expert, tensor); `Layout` refuses those that
are not built yet. Small values (losses, norms, clocks) travel over gloo on the CPU, whatever carries the
activations.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from fullbore.errors import ConfigError, NeighborLost, TransferStalled
from fullbore.ir.recipe import Layout
from fullbore.runtime.clock import read_clock
from fullbore.runtime.device import Device
from fullbore.runtime.torch_errors import attempt
from fullbore.runtime.transport import PeerLost, TransferTimeout
from fullbore.timeline.clock import ClockOffset

__all__ = ["Mesh", "local_rank", "world_size"]

_AXES = ("pipeline", "data", "context", "expert", "tensor")
_START_UP_S = 300.0
_T = TypeVar("_T")


def local_rank() -> int:
    """This process's number on this machine, as torchrun gives it; 0 outside a group."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def world_size() -> int:
    """How many processes the environment speaks of; 1 outside a group."""
    return int(os.environ.get("WORLD_SIZE", "1"))


class Mesh:
    """This rank's place. With one rank there is no process group at all.

    Joins the group that is there (torchrun, Ray, ...), or makes one from the environment.

    Raises:
        ConfigError: the world has another number of ranks than the layout.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        device: Device,
        timeout_s: float,
        store: dist.TCPStore | None = None,  # type: ignore[name-defined]
    ) -> None:
        wanted = layout.pipeline * layout.data * layout.context * layout.expert * layout.tensor
        present = dist.get_world_size() if dist.is_initialized() else world_size()
        if present != wanted:
            raise ConfigError(
                f"this layout needs {wanted} processes ({layout.pipeline} pipeline stages); {present} were started; "
                f"use --nproc-per-node {wanted}, or a layout for {present}"
            )
        self.num_ranks = layout.pipeline
        self.rank = 0
        self.ranks: tuple[int, ...] = (0,)
        self._owns_group = False
        self._steps: dist.ProcessGroup | None = None
        self.clock = ClockOffset(0, 0, time.perf_counter_ns())
        """This rank's clock against rank 0's, measured now."""
        if wanted == 1:
            return
        if not dist.is_initialized():
            backend = "gloo" if device.backend == "gloo" else f"cpu:gloo,cuda:{device.backend}"
            dist.init_process_group(
                backend,
                store=store,
                rank=int(os.environ["RANK"]) if store is not None else -1,
                world_size=wanted if store is not None else -1,
                timeout=timedelta(seconds=max(_START_UP_S, timeout_s)),
            )
            self._owns_group = True
        sizes = tuple(getattr(layout, axis) for axis in _AXES)
        mesh = init_device_mesh(device.torch_device.type, sizes, mesh_dim_names=_AXES)
        pipeline = mesh["pipeline"]
        self.rank = pipeline.get_local_rank()
        self.ranks = tuple(pipeline.mesh.tolist())
        self._steps = dist.new_group(list(self.ranks), timeout=timedelta(seconds=timeout_s), backend="gloo")
        self.clock = self.measure_clock()

    def measure_clock(self) -> ClockOffset:
        """Compare with rank 0 once more; every rank calls this together. Between two measurements lies the drift."""
        return read_clock(self._steps, rank=self.rank, ranks=self.ranks)

    def sum(self, values: Sequence[float]) -> list[float]:
        """Elementwise sum over the pipeline's ranks, in float64; the same bits on every rank."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def max(self, values: Sequence[float]) -> list[float]:
        """Elementwise maximum over the pipeline's ranks."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def gather(self, value: _T) -> list[_T]:
        """Every rank's value, by rank, on every rank."""
        if self._steps is None:
            return [value]
        values: list[Any] = [None] * self.num_ranks
        self.together(lambda: dist.all_gather_object(values, value, group=self._steps))
        return values

    def gather_on_first(self, value: _T) -> list[_T]:
        """Every rank's value, by rank, on rank 0; an empty list elsewhere."""
        if self._steps is None:
            return [value]
        values: list[Any] | None = [None] * self.num_ranks if self.rank == 0 else None
        self.together(lambda: dist.gather_object(value, values, dst=self.ranks[0], group=self._steps))
        return values or []

    def new_group(self, ranks: Sequence[int], *, timeout_s: float) -> dist.ProcessGroup | None:
        """A group of pipeline ranks. Every rank calls this, in the same order; None for one rank."""
        if len(ranks) < 2:
            return None
        group: dist.ProcessGroup = dist.new_group([self.ranks[r] for r in ranks], timeout=timedelta(seconds=timeout_s))
        return group

    def close(self) -> None:
        """Leave the process group if this mesh made it."""
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()

    def together(self, collective: Callable[[], object]) -> None:
        """Run something that every rank takes part in; a rank that is gone or late becomes a typed error."""
        try:
            attempt(collective)
        except TransferTimeout as error:
            raise TransferStalled(
                f"rank {self.rank} waited in vain for the other ranks in a reduction ({error})",
                rank=self.rank,
                action="reduction",
            ) from error
        except PeerLost as error:
            raise NeighborLost(
                f"rank {self.rank} lost another rank in a reduction ({error})", rank=self.rank, action="reduction"
            ) from error

    def _reduce(self, values: Sequence[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        if self._steps is None:
            return list(values)
        tensor = torch.tensor(list(values), dtype=torch.float64)
        self.together(lambda: dist.all_reduce(tensor, op=operation, group=self._steps))
        reduced: list[float] = tensor.tolist()
        return reduced
