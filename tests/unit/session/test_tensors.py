from __future__ import annotations

import numpy as np

from fullbore.data.batches import SampleOrder
from fullbore.session.session import tensors


def test_labels_are_the_tokens_after_the_inputs_under_both_names() -> None:
    order = SampleOrder(np.arange(100), sequence_length=9, seed=0, vocab_size=100)
    (rows,) = order.microbatches(0, count=3, num_microbatches=1)
    batch = tensors(rows)
    assert batch["input_ids"].shape == (3, 9)
    assert (batch["labels"] == batch["input_ids"] + 1).all()
    assert batch["inputs"] is batch["input_ids"]
