"""Mesh: the ranks of a run and their axes, as PyTorch's DeviceMesh. fullbore owns the pipeline axis.

Every axis has a name from the start (pipeline, data, context, expert, tensor); `Layout` refuses those that are not
built yet. An axis of one rank is left out: it would be one more group with threads of its own. Small values (losses,
norms, clocks) travel over gloo on the CPU, whatever carries the activations.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout  # there is no public way; torchtitan uses it too

from fullbore.errors import ConfigError, NeighborLost, TransferStalled
from fullbore.ir.recipe import Layout
from fullbore.runtime.clock import read_clock
from fullbore.runtime.device import Device
from fullbore.runtime.environment import world_size
from fullbore.runtime.processes.board import START_UP_FACTOR, ProgressBoard
from fullbore.runtime.rendezvous import join_group, leave_group, make_group
from fullbore.runtime.transport.torch_errors import attempt
from fullbore.runtime.transport.transport import PeerLost, TransferTimeout
from fullbore.timeline.clock import ClockOffset

__all__ = ["Mesh"]

_AXES = ("pipeline", "data", "context", "expert", "tensor")
_T = TypeVar("_T")


class Mesh:
    """This rank's place. With one rank there is no process group at all.

    Joins the group that is there (torchrun, Ray, ...), or makes one from the environment.

    ``board``: told when this rank waits for the others, so that it is not taken for one that is stuck.

    Raises:
        ConfigError: the world has another number of ranks than the layout, or its ranks cannot meet: the address that
            the environment names is taken by something else.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        device: Device,
        timeout_s: float,
        store: dist.TCPStore | None = None,  # type: ignore[name-defined]
        board: ProgressBoard | None = None,
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
        self._joined = False
        self._board = board
        self._timeout_s = timeout_s
        self._patience_s = timeout_s
        self._steps: dist.ProcessGroup | None = None
        self._groups: list[dist.ProcessGroup] = []
        self.clock = ClockOffset(0, 0, time.perf_counter_ns())
        """This rank's clock against rank 0's, measured now."""
        if wanted == 1:
            return
        if not dist.is_initialized():
            backend = "gloo" if device.backend == "gloo" else f"cpu:gloo,cuda:{device.backend}"
            make_group(backend, store=store, num_ranks=wanted, timeout_s=START_UP_FACTOR * timeout_s)
        join_group()
        self._joined = True
        axes = tuple(axis for axis in _AXES if axis == "pipeline" or getattr(layout, axis) > 1)
        sizes = tuple(getattr(layout, axis) for axis in axes)
        pipeline = init_device_mesh(device.torch_device.type, sizes, mesh_dim_names=axes)["pipeline"]
        self.rank = pipeline.get_local_rank()
        self.ranks = tuple(pipeline.mesh.tolist())
        self._steps = dist.new_group(list(self.ranks), backend="gloo")
        self._groups.append(self._steps)
        self.start_up()
        self.clock = self.measure_clock()

    def start_up(self) -> None:
        """From here on a rank may wait for the others as long as a start-up may take: one of them reads, measures,
        builds or compares."""
        self._wait_at_most(START_UP_FACTOR * self._timeout_s)

    def begin_steps(self) -> None:
        """From here on a rank that is ``timeout_s`` late is given up."""
        self._wait_at_most(self._timeout_s)

    def measure_clock(self) -> ClockOffset:
        """Compare with rank 0 once more; every rank calls this together. Between two measurements lies the drift."""
        return self.together(lambda: read_clock(self._steps, rank=self.rank, ranks=self.ranks))

    def sum(self, values: Sequence[float]) -> list[float]:
        """Elementwise sum over the pipeline's ranks, in float64; the same bits on every rank."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def max(self, values: Sequence[float]) -> list[float]:
        """Elementwise maximum over the pipeline's ranks."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        self.sum([0.0])

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
        packed = _packed(value)
        self.together(lambda: dist.gather_object(packed, values, dst=self.ranks[0], group=self._steps))
        return [_unpacked(one) for one in values or []]

    def share(self, value: _T, *, owner: int) -> _T:
        """The value that rank ``owner`` gives, on every rank."""
        if self._steps is None:
            return value
        values: list[Any] = [_packed(value) if self.rank == owner else None]
        self.together(lambda: dist.broadcast_object_list(values, src=self.ranks[owner], group=self._steps))
        shared: _T = _unpacked(values[0])
        return shared

    def new_group(self, ranks: Sequence[int], *, timeout_s: float) -> dist.ProcessGroup | None:
        """A group of pipeline ranks. Every rank calls this, in the same order; None for one rank."""
        if len(ranks) < 2:
            return None
        members, timeout = [self.ranks[r] for r in ranks], timedelta(seconds=timeout_s)
        group: dist.ProcessGroup = self.together(lambda: dist.new_group(members, timeout=timeout))
        if self.rank in ranks:
            self._groups.append(group)
        return group

    def leave(self, group: dist.ProcessGroup) -> None:
        """Let go of a group that `new_group` made. A rank that is not in it has nothing to let go of."""
        if group in self._groups:
            self._groups.remove(group)
            dist.destroy_process_group(group)

    def close(self) -> None:
        """Leave every group that this mesh made; the process group of the world too, if a mesh of this process made it
        and no other stands on it."""
        if not dist.is_initialized():
            return
        for group in tuple(self._groups):
            self.leave(group)
        self._steps = None
        if self._joined:
            self._joined = False
            leave_group()

    def together(self, collective: Callable[[], _T]) -> _T:
        """Run something that every rank takes part in; a rank that is gone or late becomes a typed error."""
        try:
            with nullcontext() if self._board is None else self._board.waiting(self.rank):
                return attempt(collective)
        except TransferTimeout as error:
            raise TransferStalled(
                f"rank {self.rank} waited {self._patience_s:g} s for the other ranks {self._where()} ({error})",
                rank=self.rank,
                action="reduction",
            ) from error
        except PeerLost as error:
            raise NeighborLost(
                f"rank {self.rank} lost another rank {self._where()} ({error})", rank=self.rank, action="reduction"
            ) from error

    def _wait_at_most(self, seconds: float) -> None:
        self._patience_s = seconds
        if self._steps is not None:
            _set_pg_timeout(timedelta(seconds=seconds), self._steps)

    def _where(self) -> str:
        return "in a reduction" if self._board is None else self._board.read(self.rank).where()

    def _reduce(self, values: Sequence[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        if self._steps is None:
            return list(values)
        tensor = torch.tensor(list(values), dtype=torch.float64)
        self.together(lambda: dist.all_reduce(tensor, op=operation, group=self._steps))
        reduced: list[float] = tensor.tolist()
        return reduced


def _packed(value: object) -> bytes:
    """As `torch.save` has it. Pickle alone, with which torch sends objects, reads back no uint16 and no float8."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _unpacked(packed: bytes) -> Any:
    return torch.load(io.BytesIO(packed), weights_only=False)
