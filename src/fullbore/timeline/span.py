"""Span and Timeline: what happened, or would happen, and when. Integer nanoseconds (or ticks).

The simulator returns a Timeline and the trace reader returns a Timeline, so drawing, bubble accounting and
comparison are each written once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from fullbore.ids import Rank
from fullbore.ir.action import Compute

__all__ = ["Activity", "Row", "Span", "Timeline"]


class Row(StrEnum):
    """The rows a rank has in a timeline; spans of one row never overlap."""

    COMPUTE = "compute"
    WAIT = "wait"
    FLUSH = "flush"
    NESTED = "nested"
    """Work inside a compute span, such as recomputation inside a backward."""


class Activity(StrEnum):
    """What a span without a compute action stands for."""

    RECV_WAIT = "recv-wait"
    TIED_GRADIENTS = "tied-gradients"
    GRADIENT_NORM = "gradient-norm"
    LOSS_REDUCE = "loss-reduce"
    OPTIMIZER = "optimizer"
    DATA = "data"


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of time on one rank. ``start_ns <= end_ns``.

    A COMPUTE span has the action it ran. A WAIT span has the action that waited. A FLUSH span has none.
    A NESTED span has its own action (kind `R` for recomputation).
    """

    rank: Rank
    row: Row
    action: Compute | None
    activity: Activity | None
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def label(self) -> str:
        """Short text for drawings and traces."""
        return str(self.action) if self.action is not None else str(self.activity)


@dataclass(frozen=True, slots=True)
class Timeline:
    """The spans of one step (or of several), sorted by (start, rank, sequence)."""

    num_ranks: int
    spans: tuple[Span, ...]

    @classmethod
    def of(cls, spans: Iterable[Span], *, num_ranks: int) -> Timeline:
        """Sorts by (start, rank); equal ones keep the order given."""
        return cls(num_ranks, tuple(sorted(spans, key=lambda span: (span.start_ns, span.rank))))

    @property
    def has_several_stages(self) -> bool:
        """Does any rank compute for more than one stage? Then a label has to say which."""
        held = {(span.rank, span.action.stage) for span in self.spans if span.action is not None}
        return len(held) > len({rank for rank, _ in held})

    def on(self, rank: int, row: Row) -> tuple[Span, ...]:
        """The spans of one row, in order of time."""
        return tuple(span for span in self.spans if span.rank == rank and span.row is row)

    @property
    def compute_start_ns(self) -> int:
        """First compute start over all ranks; 0 without any."""
        return min((s.start_ns for s in self.spans if s.row is Row.COMPUTE), default=0)

    @property
    def compute_end_ns(self) -> int:
        """Last compute end over all ranks; 0 without any."""
        return max((s.end_ns for s in self.spans if s.row is Row.COMPUTE), default=0)
