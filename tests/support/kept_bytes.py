"""How many bytes autograd keeps for a pipeline's backwards, as they come and go."""

from __future__ import annotations

from torch import Tensor

from fullbore.runtime.pipeline import Pipeline


class Kept:
    """Bytes that autograd keeps, as they come and go; a model's own weights do not count."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._own = {weight.data_ptr() for weight in pipeline.weights().values()}
        self.now = 0
        self.peak = 0

    def pack(self, tensor: Tensor) -> Entry:
        counts = tensor.device.type != "meta" and tensor.data_ptr() not in self._own
        return Entry(tensor, self, tensor.numel() * tensor.element_size() if counts else 0)


class Entry:
    """One saved tensor, counted for as long as the graph has it."""

    def __init__(self, tensor: Tensor, kept: Kept, size: int) -> None:
        self.tensor = tensor
        self._kept = kept
        self._size = size
        kept.now += size
        kept.peak = max(kept.peak, kept.now)

    def __del__(self) -> None:
        self._kept.now -= self._size
