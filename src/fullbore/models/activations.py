"""What a forward keeps until its backward, counted where autograd packs it away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["KeptTensors", "kept_bytes"]


class KeptTensors:
    """The storages that autograd saved, other than a module's own parameters and buffers."""

    def __init__(self, module: nn.Module) -> None:
        self._own = {_address(tensor) for tensor in (*module.parameters(), *module.buffers())}
        self._kept: dict[int, Tensor] = {}

    def pack(self, tensor: Tensor) -> Tensor:
        """Note one saved tensor, and hold it so that its address stays its own."""
        address = _address(tensor)
        if address not in self._own and tensor.device.type != "meta":  # a pass for shapes alone keeps no bytes
            self._kept.setdefault(address, tensor.detach())
        return tensor

    def total(self, *, without: Iterable[Tensor]) -> int:
        """Bytes of the distinct storages, except those of ``without``: the output, which counts where it goes."""
        skip = {_address(tensor) for tensor in without}
        return sum(t.untyped_storage().nbytes() for address, t in self._kept.items() if address not in skip)


@contextmanager
def kept_bytes(module: nn.Module) -> Iterator[KeptTensors]:
    """Count what forwards inside the block keep. Views of one storage count once."""
    kept = KeptTensors(module)
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, _unpack):
        yield kept


def _unpack(tensor: Tensor) -> Tensor:
    return tensor


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
