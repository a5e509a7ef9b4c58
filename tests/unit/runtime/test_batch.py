from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from fullbore.errors import ConfigError, ModelError
from fullbore.models.layered import Objective
from fullbore.runtime.batch import counted, microbatches_of, split_batch


def test_slices_are_views_in_order() -> None:
    batch = {"inputs": torch.arange(6), "targets": torch.arange(6) * 10}
    slices = split_batch(batch, 3)
    assert [s["inputs"].tolist() for s in slices] == [[0, 1], [2, 3], [4, 5]]
    assert [s["targets"].tolist() for s in slices] == [[0, 10], [20, 30], [40, 50]]
    assert slices[1]["inputs"].data_ptr() == batch["inputs"][2:].data_ptr()


@pytest.mark.parametrize(
    ("samples", "number", "sizes"), [(8, 3, [3, 3, 2]), (10, 4, [3, 3, 2, 2]), (7, 7, [1] * 7), (5, 1, [5])]
)
def test_a_batch_that_does_not_divide_gives_slices_of_nearly_one_size(
    samples: int, number: int, sizes: list[int]
) -> None:
    """pytorch #126600: 3, 3, 2 on every stage; nothing is dropped, repeated or empty."""
    slices = split_batch({"inputs": torch.arange(samples)}, number)
    assert [len(s["inputs"]) for s in slices] == sizes
    assert torch.cat([s["inputs"] for s in slices]).tolist() == list(range(samples))


def test_fewer_samples_than_microbatches_are_refused_with_what_would_do() -> None:
    said = "2 samples do not make 4 microbatches; use 4 samples or more, or at most 2 microbatches a step"
    with pytest.raises(ConfigError, match=said):
        split_batch({"inputs": torch.zeros(2)}, 4)


@pytest.mark.parametrize(
    "batch", [{}, {"inputs": torch.zeros(0)}, {"a": torch.zeros(4), "b": torch.zeros(3)}, {"a": torch.tensor(1.0)}]
)
def test_a_batch_without_one_number_of_samples_is_refused(batch: dict[str, torch.Tensor]) -> None:
    with pytest.raises(ConfigError, match="one number of samples"):
        split_batch(batch, 1)


def test_a_sequence_is_the_microbatches_whatever_their_shapes() -> None:
    given = [{"inputs": torch.zeros(1, 9)}, {"inputs": torch.zeros(3, 5), "offsets": torch.tensor([0, 2])}]
    for number in (2, None):
        taken = microbatches_of(given, number=number, most=4)
        assert [one.keys() for one in taken] == [one.keys() for one in given]
        assert taken[1]["offsets"] is given[1]["offsets"]


def test_an_evaluation_of_fewer_samples_than_microbatches_takes_one_each() -> None:
    for samples, number in ((2, 2), (9, 4)):
        assert len(microbatches_of({"inputs": torch.zeros(samples)}, number=None, most=4)) == number


@pytest.mark.parametrize(
    ("batch", "number", "said"),
    [
        ([{"a": torch.zeros(1)}] * 3, 4, "there must be 4 of them (given 3); group the samples into that many"),
        ([], None, "there must be 1 of them (given 0)"),
        ([{"a": torch.tensor(1.0)}], None, "samples along dimension 0 (microbatch 0 is {'a': []})"),
        ({"a": torch.zeros(4)}, 0, "a whole number of microbatches, at least 1 (num_microbatches=0)"),
        (
            torch.zeros(4),
            2,
            "a mapping of tensors or a sequence of such mappings, one for each microbatch (given a Ten",
        ),
        ([torch.zeros(4)], 1, "a mapping of tensors or a sequence of such mappings"),
        ([{"a": torch.zeros(1)}, {"a": torch.zeros(0, 3)}], 2, "(microbatch 1 is {'a': [0, 3]})"),
        ([{"a": torch.zeros(1)}, {}], 2, "(microbatch 1 is {})"),
        ([{"a": [1, 2]}], 1, "(microbatch 0 is {'a': 'list'})"),
    ],
)
def test_what_is_no_batch_is_refused(batch: Any, number: int | None, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        microbatches_of(batch, number=number, most=4)


def objective(items: Any) -> Objective:
    return Objective(loss_sum=lambda output, batch: output.sum(), count=lambda batch: items)


@pytest.mark.parametrize("items", [3, 3.0, torch.tensor(3), torch.tensor([3.0])])
def test_items_that_count_are_a_number_in_any_form(items: Any) -> None:
    assert counted([{}, {}], objective(items)) == 6


@pytest.mark.parametrize("items", [float("nan"), float("inf"), None, "3", torch.ones(2), torch.tensor(float("nan"))])
def test_a_count_that_is_no_number_is_refused(items: Any) -> None:
    with pytest.raises(ModelError, match=r"^Objective\.count gives a number for each microbatch \(microbatch 0: "):
        counted([{}], objective(items))


@pytest.mark.parametrize("items", [-1, 0.5])
def test_counts_whose_sum_is_no_whole_number_are_refused(items: Any) -> None:
    with pytest.raises(ModelError, match="whole numbers of at least 0"):
        counted([{}], objective(items))
