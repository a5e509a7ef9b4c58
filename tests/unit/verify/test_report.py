"""Parity is more than equal losses, and less than equal bits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fullbore.report.verify import render_verify
from fullbore.verify.report import TensorError, VerifyReport

SAME = (TensorError("w1", 0.0), TensorError("w2", 1e-12))
REPORT = VerifyReport(
    parity=True,
    tolerance=1e-9,
    dtype="float64",
    steps=2,
    loss_errors=(0.0, 0.0),
    initial_weights=(TensorError("w1", 0.0), TensorError("w2", 0.0)),
    gradients=SAME,
    parameters=SAME,
    buffers=(),
    optimizer="adamw",
    adamw_parameters=(),
    undivided_batch=None,
    not_comparable=(),
)


def test_equal_losses_with_nothing_else_compared_are_no_parity() -> None:
    """torchtitan #2972: the loss was right and the gradients were four times too large."""
    assert REPORT.failures == ()
    assert replace(REPORT, gradients=(), parameters=()).failures == (
        "no gradient was compared, and equal losses alone prove nothing",
    )
    wrong = replace(REPORT, gradients=(TensorError("w1", 3.0), TensorError("w2", 3.0)))
    assert wrong.failures == ("gradient w1: 3.00e+00", "gradient w2: 3.00e+00")
    assert wrong.loss_relative_error == 0.0


def test_what_was_not_compared_is_not_counted_as_too_far() -> None:
    nothing = replace(REPORT, parity=False, gradients=(), parameters=())
    unproven = "NO parity in float64: no gradient was compared, and equal losses alone prove nothing"
    assert render_verify(nothing).splitlines()[-1] == unproven
    assert render_verify(replace(nothing, loss_errors=(0.5, 0.0))).splitlines()[-3:] == [
        unproven,
        "NO parity in float64: 1 too far from the reference; the worst:",
        "  loss: 5.00e-01",
    ]


@pytest.mark.parametrize("what", ["initial_weights", "gradients", "parameters", "buffers"])
def test_everything_that_is_too_far_is_a_failure(what: str) -> None:
    far = replace(REPORT, **{what: (TensorError("x", 1e-3),)})
    assert [text for text in far.failures if text.endswith("x: 1.00e-03")] == list(far.failures) != []


WITHIN = "within the 1e-09 that rounding may make"


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({}, f"the gradient of w2 is off by 1.0e-12 of its largest value, {WITHIN}"),
        ({"loss_errors": (1e-16, 0.0)}, f"the loss of step 1 is off by 1.0e-16 of its value, {WITHIN}"),
        ({"loss_errors": (0.0, 1e-16)}, f"the gradient of w2 is off by 1.0e-12 of its largest value, {WITHIN}"),
        (
            {"gradients": (TensorError("w1", 0.0),), "loss_errors": (0.0, 2e-16)},
            f"the loss of step 2 is off by 2.0e-16 of its value, {WITHIN}",
        ),
        ({"gradients": (TensorError("w1", 0.0),), "parameters": (TensorError("w1", 0.0),)}, None),
    ],
)
def test_the_first_difference_is_first_in_training(changes: dict[str, object], first: str | None) -> None:
    """torchtitan PR #4312: everything was equal to the last bit but the norm, and the weights that it clipped."""
    assert replace(REPORT, **changes).first_difference == first  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        (
            {"gradients": (TensorError("w1", 0.0), TensorError("w2", 1e-3))},
            "the gradient of w2 is off by 1.0e-03 of its largest value, above the 1e-09 that rounding may make",
        ),
        (
            {"initial_weights": (TensorError("w1", 0.0), TensorError("w2", 1e-12))},
            "the initial weight w2 is off by 1.0e-12 of its largest value, and every initial weight has to be the same "
            "to the last bit",
        ),
        (
            {"gradients": (TensorError("w1", float("inf")),)},
            "the gradient of w1 cannot be compared (missing on one side, of another shape, not finite, or all zeros in "
            "the reference)",
        ),
        (
            {"loss_errors": (float("inf"), 0.0)},
            "the loss of step 1 cannot be compared (it is not finite, here or in the reference)",
        ),
    ],
)
def test_the_first_difference_says_by_how_much_and_what_is_allowed(changes: dict[str, object], first: str) -> None:
    report = replace(REPORT, **changes)  # type: ignore[arg-type]
    assert report.first_difference == first
    shown = f"first difference: {first}; whatever comes before it has the same bits"
    assert shown in render_verify(report).splitlines()
