"""Unit-free costs of the command line, turned into integer ticks without rounding.

``--cost F,I,W``  forward, backward for the input, backward for the weights of one microbatch on one rank's whole
share; each may be a ``:`` list with one value a rank: ``1:1:1:2,1,1``. ``--comm C``: the delay of one boundary
transfer, or a ``:`` list with one value a boundary. A chunk takes 1/v of the share, a slice of its sequence 1/s of
that; where there are two streams, each of a rank's two stages takes the whole share of the microbatches that come
through it, and both streams cross the same boundaries. Decimals are exact: all values are fractions, and the scale is
the least number of ticks a unit with which every value, divided by v s, is whole. ``1,1.2,.8`` with v = 2: 10 ticks a
unit.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.errors import CostsError
from fullbore.ir.placement import Placement
from fullbore.shown import shown

__all__ = ["UnitCosts", "parse_unit_costs"]

_DECIMAL = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15}", re.ASCII)


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """Costs in ticks, and how many ticks one unit has."""

    chunk_of_rank: tuple[StageCost, ...]
    """What one forward of a chunk and its backward take on each rank."""

    links: tuple[Link, ...]
    """One for each boundary between stages s and s + 1; nothing crosses the one between two streams."""

    scale: int
    """Ticks a unit; divisible by v s."""

    def of(self, placement: Placement) -> tuple[StageCost, ...]:
        """One cost a stage, in stage order."""
        return tuple(self.chunk_of_rank[rank] for rank in placement.ranks)

    def units(self, ticks: int) -> Fraction:
        """A time in the units of the command line, exact."""
        return Fraction(ticks, self.scale)


def parse_unit_costs(
    text: str, *, num_ranks: int, num_chunks: int = 1, num_streams: int = 1, num_slices: int = 1, comm: str = "0"
) -> UnitCosts:
    """Read ``--cost`` and ``--comm``. Raises `CostsError` that says what was required and what was given."""
    for name, size in (("num_ranks", num_ranks), ("num_chunks", num_chunks)):
        if size < 1:
            raise CostsError(f"{name} must be at least 1 ({name}={size})")
    parts = text.split(",")
    if len(parts) != 3:
        raise CostsError(
            f"a cost is forward, backward for the input, backward for the weights, as in 1,1,1 "
            f"(given {len(parts)} part(s): {shown(repr(text))})"
        )
    names = ("forward", "backward for the input", "backward for the weights")
    per_rank = [
        _values(part, count=num_ranks, each="rank", where=f"the {name} in cost {shown(repr(text))}")
        for name, part in zip(names, parts, strict=True)
    ]
    if not any(value for values in per_rank for value in values):
        raise CostsError(f"at least one cost must be above 0 (given {shown(repr(text))})")
    count = num_ranks * num_chunks // num_streams - 1
    delays = _values(comm, count=count, each="boundary", where=f"comm {shown(repr(comm))}")
    if num_streams > 1:
        delays = [*delays, Fraction(0), *delays]
    cut = num_chunks // num_streams * num_slices
    chunks = [[value / cut for value in values] for values in per_rank]
    denominators = [value.denominator for values in (*per_rank, *chunks, delays) for value in values]
    scale = math.lcm(cut, *denominators)
    forward, backward_input, backward_weight = ([int(value * scale) for value in values] for values in chunks)
    return UnitCosts(
        tuple(map(StageCost, forward, backward_input, backward_weight)),
        tuple(Link(int(delay * scale)) for delay in delays),
        scale,
    )


def _values(text: str, *, count: int, each: str, where: str) -> list[Fraction]:
    words = text.split(":")
    for word in words:
        if not _DECIMAL.fullmatch(word):
            raise CostsError(f"a time is a decimal number of at least 0, as in 1 or 0.5 ({where}: {shown(repr(word))})")
    values = [Fraction(word) for word in words]
    if len(values) == 1:
        return values * count
    if len(values) != count:
        raise CostsError(f"a list needs one value for each {each}, {count} of them ({where}: given {len(values)})")
    return values
