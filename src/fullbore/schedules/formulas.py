"""Closed forms for p equal stages, m microbatches and free links. Two words that are never confused:

    bubble fraction   (p - 1) / (m + p - 1)   a share of wall time, always below 1
    bubble overhead   (p - 1) / m             relative to ideal compute time; may exceed 1, never a share of time

With v interleaved chunks a rank, replace m by v * m. p = 4, m = 8: fraction 27.27 %, overhead 37.5 %.
"""

from __future__ import annotations

from fractions import Fraction

from fullbore.costs.stage import StageCost
from fullbore.schedules.sizes import Sizes, require_sizes

__all__ = ["bubble_fraction", "bubble_overhead", "fill_and_drain_span", "fill_span"]


def bubble_fraction(num_ranks: int, *, num_microbatches: int, num_chunks: int = 1) -> Fraction:
    """Idle share of wall time."""
    require_sizes("a bubble", num_ranks=num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks)
    return Fraction(num_ranks - 1, num_chunks * num_microbatches + num_ranks - 1)


def bubble_overhead(num_ranks: int, *, num_microbatches: int, num_chunks: int = 1) -> Fraction:
    """Idle time relative to ideal compute time."""
    require_sizes("a bubble", num_ranks=num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks)
    return Fraction(num_ranks - 1, num_chunks * num_microbatches)


def fill_and_drain_span(sizes: Sizes, share: StageCost) -> Fraction:
    """(m + (p - 1) / v) slots of F + B: the pipe fills for p - 1 chunks' time, then a microbatch leaves every slot."""
    return share.total * (sizes.num_microbatches + Fraction(sizes.num_ranks - 1, sizes.num_chunks))


def fill_span(sizes: Sizes, share: StageCost) -> Fraction | None:
    """m slots of F + I + W and p - 1 of F: weight gradients fill the drain, and only filling is left; for F = I = W."""
    if not share.forward == share.backward_input == share.backward_weight:
        return None
    return Fraction(sizes.num_microbatches * share.total + (sizes.num_ranks - 1) * share.forward)
