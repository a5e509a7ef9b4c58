"""What `tests/distributed/test_mesh.py` runs on launched ranks: the mesh alone, without a pipeline."""

from __future__ import annotations

import torch
from torch import Tensor

from fullbore.runtime.processes.launch import Worker
from tests.support.ranks import group


def two_meshes(worker: Worker) -> tuple[float, bool]:
    """(a sum over the ranks of the second once the first is closed, is there a group when both are). The second has a
    group of its own to let go of, as a pipeline has."""
    first, second = group(worker), group(worker)
    lane = second.new_group((0, 1), timeout_s=30.0)
    first.close()
    first.close()
    total = second.sum([1.0 + worker.rank])
    assert lane is not None
    second.leave(lane)
    second.close()
    return total[0], torch.distributed.is_initialized()


def narrow_types(worker: Worker) -> tuple[bool, bool]:
    """Do tensors arrive of which pickle alone makes nothing: shared by one rank, gathered on the first?"""
    mesh = group(worker)
    sent = [torch.arange(3).to(dtype) for dtype in (torch.uint16, torch.float8_e4m3fn)]
    shared = mesh.share(sent if mesh.rank else None, owner=mesh.num_ranks - 1)
    gathered = mesh.gather_on_first(sent)
    mesh.close()
    assert shared is not None
    same = [all(map(_same_bits, sent, tensors)) for tensors in (shared, *gathered)]
    return same[0], all(same[1:]) and len(gathered) == (0 if mesh.rank else mesh.num_ranks)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))
