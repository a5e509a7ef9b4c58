from __future__ import annotations

import pytest
import torch

from fullbore.errors import ConfigError
from fullbore.runtime.batch import split_batch


def test_slices_are_views_in_order() -> None:
    batch = {"inputs": torch.arange(6), "targets": torch.arange(6) * 10}
    slices = split_batch(batch, 3)
    assert [s["inputs"].tolist() for s in slices] == [[0, 1], [2, 3], [4, 5]]
    assert [s["targets"].tolist() for s in slices] == [[0, 10], [20, 30], [40, 50]]
    assert slices[1]["inputs"].data_ptr() == batch["inputs"][2:].data_ptr()


@pytest.mark.parametrize(
    ("samples", "microbatches", "advice"), [(8, 3, "use 6 or 9 samples"), (2, 4, "use 4 samples"), (10, 4, "8 or 12")]
)
def test_a_batch_that_does_not_divide_is_refused_with_the_nearest_sizes(
    samples: int, microbatches: int, advice: str
) -> None:
    with pytest.raises(ConfigError, match=advice):
        split_batch({"inputs": torch.zeros(samples)}, microbatches)


@pytest.mark.parametrize("batch", [{}, {"inputs": torch.zeros(0)}, {"a": torch.zeros(4), "b": torch.zeros(3)}])
def test_a_batch_without_one_number_of_samples_is_refused(batch: dict[str, torch.Tensor]) -> None:
    with pytest.raises(ConfigError, match="one number of samples"):
        split_batch(batch, 1)
