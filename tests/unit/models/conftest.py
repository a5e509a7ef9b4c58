"""One thread: the matrices here are tiny, and results must not depend on how many cores a machine has.

And for tests that register split backwards: a registry of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fullbore.models.split_backward import norm_splits, weight_registry


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def rules_of_one_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is registered in a test is forgotten after it; and its norms are taken for large ones."""
    monkeypatch.setattr(norm_splits, "SMALLEST_NORM", 1)
    monkeypatch.setattr(weight_registry, "_RULES", dict(weight_registry._RULES))
