"""Interleaved 1F1B: every rank holds v stages and runs 1F1B over them in turn, so that filling takes 1/v of the time.

Deepak Narayanan, Mohammad Shoeybi, Jared Casper, Patrick LeGresley, Mostofa Patwary, Vijay Anand Korthikanti, Dmitri
Vainbrand, Prethvi Kashinkunti, Julie Bernauer, Bryan Catanzaro, Amar Phanishayee, Matei Zaharia: Efficient Large-Scale
Language Model Training on GPU Clusters Using Megatron-LM, arXiv 2104.04473, section 2.2.2. The order is Megatron-LM's
(megatron/core/pipeline_parallel/schedules.py): ``group_size`` is its microbatch_group_size_per_vp_stage, and an
``extra_warmup`` of 1 is what it adds where it overlaps expert communication.

p ranks, v chunks, m microbatches, T = F + B of a rank's whole share, N = group size (p unless given), k = extra warmup.
Stage s on rank s mod p. All ranks walk one table: for each group of N microbatches, for each chunk, the microbatches of
the group (the last group takes what is left); backwards walk the same table with the chunks reversed. Rank r:
w = min(2 (p - 1 - r) + (v - 1) N + k, m v) forwards, then forward and backward in turn, then the backwards left.
Step (m + (p - 1) / v) T, idle (p - 1) T / v, in flight min(w + 1, m v) of a stage each, v of them one share.
p = 2, v = 2, m = 4, B as long as F; chunk 0 has digits, chunk 1 letters (a = microbatch 0), a prime marks a backward:

    rank 0   0  1  a  b  2  a' 3  b' c  0' d  1' .  c' .  d' 2' 3'
    rank 1   .  0  1  a  a' b  b' 2  0' 3  1' c  c' d  d' 2' 3' .
"""

from __future__ import annotations

from collections.abc import Iterator

from fullbore.errors import ScheduleError
from fullbore.ids import MicrobatchIndex, StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.entry import Option, ScheduleEntry
from fullbore.schedules.formulas import fill_and_drain_span
from fullbore.schedules.sizes import Sizes

__all__ = ["ENTRY"]

_NAME = "interleaved-1f1b"


def _make(sizes: Sizes) -> Schedule:
    p, v = sizes.num_ranks, sizes.num_chunks
    table = tuple(_table(sizes))

    def order(rank: int) -> tuple[Compute, ...]:
        forwards = [Compute(StageIndex(chunk * p + rank), Kind.FORWARD, mb) for chunk, mb in table]
        backwards = [Compute(StageIndex((v - 1 - chunk) * p + rank), Kind.BACKWARD, mb) for chunk, mb in table]
        warmup = _warmup(sizes, rank)
        actions = forwards[:warmup]
        for index, backward in enumerate(backwards):
            actions += forwards[warmup + index : warmup + index + 1]
            actions.append(backward)
        return tuple(actions)

    placement = Placement.loop(p, num_chunks=v)
    return Schedule(_NAME, placement, sizes.num_microbatches, tuple(map(order, range(p))))


def _table(sizes: Sizes) -> Iterator[tuple[int, MicrobatchIndex]]:
    """(chunk, microbatch) in the order that all ranks follow."""
    size, total = _group_size(sizes), sizes.num_microbatches
    for first in range(0, total, size):
        for chunk in range(sizes.num_chunks):
            for index in range(first, min(first + size, total)):
                yield chunk, MicrobatchIndex(index)


def _group_size(sizes: Sizes) -> int:
    return sizes.options["group_size"] or sizes.num_ranks


def _warmup(sizes: Sizes, rank: int) -> int:
    downstream = sizes.num_ranks - 1 - rank
    wanted = 2 * downstream + (sizes.num_chunks - 1) * _group_size(sizes) + sizes.options["extra_warmup"]
    return min(wanted, sizes.num_microbatches * sizes.num_chunks)


def _fits(num_ranks: int, num_microbatches: int, group_size: int) -> bool:
    """Megatron-LM's rule: a group is never shorter than the pipe, the last one neither."""
    last = num_microbatches % group_size
    return num_ranks <= group_size <= num_microbatches and (last == 0 or last >= num_ranks)


def _check(sizes: Sizes) -> None:
    """Raises `ScheduleError` where a chunk's microbatches would come round before the rank can take them."""
    p, m, size = sizes.num_ranks, sizes.num_microbatches, _group_size(sizes)
    if _fits(p, m, size):
        return
    groups = [other for other in range(p, m + 1) if _fits(p, m, other)]
    if not sizes.options["group_size"]:
        instead = f"; or group_size={groups[0]}, with which {m} fit" if groups else ""
        raise ScheduleError(
            f"{_NAME} needs num_microbatches divisible by num_ranks (num_microbatches={m}, num_ranks={p}); "
            f"use {_nearest(m, p, p)}{instead}"
        )
    given = f"(group_size={size}, num_ranks={p}, num_microbatches={m})"
    if size < p:
        near = f"group_size={groups[0]}" if groups else f"at least {p} microbatches and group_size={p}"
        raise ScheduleError(f"{_NAME} needs group_size of at least num_ranks {given}; use {near}")
    if size > m:
        near = f" or group_size={groups[-1]}" if groups else ""
        raise ScheduleError(f"{_NAME} needs num_microbatches of at least group_size {given}; use {size}{near}")
    raise ScheduleError(
        f"{_NAME} needs a last group of at least num_ranks microbatches {given}, which leave {m % size}; "
        f"use {_nearest(m, p, size)}; or group_size={min(groups, key=lambda other: abs(other - size))}"
    )


def _nearest(num_microbatches: int, num_ranks: int, group_size: int) -> str:
    """The numbers of microbatches that fit, below and above."""
    below = [m for m in range(group_size, num_microbatches) if _fits(num_ranks, m, group_size)]
    above = next(
        m for m in range(num_microbatches + 1, 2 * num_microbatches + group_size + 1) if _fits(num_ranks, m, group_size)
    )
    return f"{below[-1]} or {above}" if below else str(above)


def _peak(sizes: Sizes, rank: int) -> int:
    return min(_warmup(sizes, rank) + 1, sizes.num_microbatches * sizes.num_chunks)


ENTRY = ScheduleEntry(
    name=_NAME,
    summary="1F1B over several stages a rank in turn; a v-th of the bubble, v times the messages",
    paper="Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters, arXiv 2104.04473",
    constraints="num_microbatches divisible by num_ranks, or in groups of group_size, none shorter than num_ranks",
    construct=lambda sizes, _: _make(sizes),
    check=_check,
    chunks=2,
    takes_chunks=True,
    options=(
        Option("group_size", 0, "microbatches that pass through a chunk before the next chunk's turn; 0 is one a rank"),
        Option("extra_warmup", 0, "further forwards of every rank before its first backward"),
    ),
    peak=_peak,
    span=fill_and_drain_span,
)
