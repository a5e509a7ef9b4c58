"""The batch arithmetic of a run: how many sequences, in how many pieces.

    global batch G = microbatch size b · microbatches m · data ranks d · accumulation a

Any of b, m and G may be absent. This is the only place that fills them in or refuses a contradiction, so that no
other code ever drops, repeats or pads a sequence to make the numbers fit (batch 8 in 3 pieces as 3, 3, 2 and its
mean of means: pytorch #126600).
"""

from __future__ import annotations

from dataclasses import dataclass

from fullbore.errors import ConfigError

__all__ = ["DEFAULT_MICROBATCHES", "DEFAULT_MICROBATCH_SIZE", "BatchSizes", "solve_sizes"]

DEFAULT_MICROBATCH_SIZE = 2
DEFAULT_MICROBATCHES = 8


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """The sizes of one optimizer step, none absent and all consistent."""

    microbatch_size: int
    microbatches: int
    accumulation: int
    global_batch: int


def solve_sizes(
    *, microbatch_size: int | None, microbatches: int | None, global_batch: int | None, accumulation: int, data: int
) -> BatchSizes:
    """All sizes from the ones that are given; None is absent.

    Without ``global_batch`` it follows from the microbatches (2 sequences each, 8 of them, where absent). With
    ``global_batch`` the absent one of microbatch size and microbatches follows from it; where both are absent the
    microbatch size is 2, or 1 where 2 does not fit.
    """
    size, count, total = microbatch_size, microbatches, global_batch
    outer = accumulation * data
    if total is None:
        size = DEFAULT_MICROBATCH_SIZE if size is None else size
        count = DEFAULT_MICROBATCHES if count is None else count
        return BatchSizes(size, count, accumulation, size * count * outer)
    given = f"batch.global_batch={total}, batch.accumulation={accumulation}, mesh.data={data}"
    if size is None and count is None:
        _need_multiple(total, of=outer, rule="batch.accumulation * mesh.data", given=given)
        share = total // outer
        size = DEFAULT_MICROBATCH_SIZE if share % DEFAULT_MICROBATCH_SIZE == 0 else 1
        return BatchSizes(size, share // size, accumulation, total)
    if count is None:
        assert size is not None
        given = f"{given}, batch.microbatch_size={size}"
        advice = _or_instead("batch.microbatch_size", size, total=total, outer=outer)
        rule = "batch.microbatch_size * batch.accumulation * mesh.data"
        _need_multiple(total, of=size * outer, rule=rule, given=given, advice=advice)
        return BatchSizes(size, total // (size * outer), accumulation, total)
    given = f"{given}, pipeline.microbatches={count}"
    advice = _or_instead("pipeline.microbatches", count, total=total, outer=outer)
    if size is None:
        rule = "pipeline.microbatches * batch.accumulation * mesh.data"
        _need_multiple(total, of=count * outer, rule=rule, given=given, advice=advice)
        return BatchSizes(total // (count * outer), count, accumulation, total)
    product = size * count * outer
    if product != total:
        raise ConfigError(
            "batch.global_batch must equal batch.microbatch_size * pipeline.microbatches * batch.accumulation * "
            f"mesh.data, which is {product} ({given}, batch.microbatch_size={size}); "
            f"use batch.global_batch={product}, or leave one of the three out and it follows from the others"
        )
    return BatchSizes(size, count, accumulation, total)


def _need_multiple(total: int, *, of: int, rule: str, given: str, advice: str = "") -> None:
    """No sequence is dropped or repeated, so the pieces must fill the global batch exactly."""
    if total % of:
        below, above = total // of * of, (total // of + 1) * of
        nearest = f"{below} or {above}" if below else str(above)
        raise ConfigError(
            f"batch.global_batch must be a multiple of {rule} = {of} ({given}); "
            f"use batch.global_batch={nearest}{advice}"
        )


def _or_instead(key: str, value: int, *, total: int, outer: int) -> str:
    """The nearest values of ``key`` that divide this rank's share of the batch, as the end of a sentence."""
    if total % outer:
        return ""
    share = total // outer
    below = [size for size in _divisors(share) if size < value]
    above = [size for size in _divisors(share) if size > value]
    nearest = " or ".join(str(size) for size in (*below[-1:], *above[:1]))
    return f", or {key}={nearest}" if nearest else ""


def _divisors(number: int) -> list[int]:
    """Ascending; none of a number that no batch has, which would take for ever."""
    if number > 10**12:
        return []
    small = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})
