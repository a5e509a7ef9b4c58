"""Was the measurement of the layers disturbed? Then what they cost is a guess, and so is the cut.

A layer would take, undisturbed, what it took in its fastest round, or the part of it in which the CPU ran it, whichever
is less. The rounds show load that comes and goes; the CPU's time also shows load that lasts for all of them, and where
there was time for one round only. A layer that waits by itself, for a file say, looks the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from fullbore.config.layer_names import name_ranges

__all__ = ["LayerRounds", "warn_of_slow_rounds"]

_UNCERTAIN = 1.5
"""Times as long as undisturbed. Models of 0.6 and 6.5 million parameters on two cores took from 1.01 to 1.3 where a
core was free; with a spinning process for each core, or with two threads on the one that is left, from 1.5 to 25."""

_MATTERS = 0.03
"""Of all layers' time: a shorter one (an embedding of a millisecond) varies most and decides nothing."""

_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class LayerRounds:
    """What one layer is said to cost, and what it took round by round, layers that are alike among them."""

    name: str
    cost_ns: int
    taken_ns: tuple[int, ...]
    """At least one."""

    ran: tuple[float, ...]
    """Of each round: the share of it in which the CPU ran the calling thread. None where another device computes."""

    @property
    def slowdown(self) -> float:
        """How many times as long as undisturbed its cost is."""
        on_cpu = [taken * ran for taken, ran in zip(self.taken_ns, self.ran, strict=True)] if self.ran else []
        quiet = min([*self.taken_ns, *([median(on_cpu)] if on_cpu else [])])
        return self.cost_ns / quiet if quiet else 1.0


def warn_of_slow_rounds(layers: Sequence[LayerRounds]) -> str | None:
    """A warning that names the layers whose costs are uncertain, those that were measured together as one; None where
    there are none."""
    least = _MATTERS * sum(layer.cost_ns for layer in layers)
    groups: dict[float, list[int]] = {}
    for index, layer in enumerate(layers):
        if layer.slowdown >= _UNCERTAIN and layer.cost_ns >= least:
            groups.setdefault(layer.slowdown, []).append(index)
    if not groups:
        return None
    names = [layer.name for layer in layers]
    named = [f"{name_ranges(group, layer_names=names)} {factor:.1f} times" for factor, group in groups.items()]
    more = len(named) - _MOST_NAMED
    named = [*named[:_MOST_NAMED], *([f"{more} more"] if more > 0 else [])]
    return (
        "warning: the costs of some layers are uncertain, since they took longer than in their fastest round, or than "
        f"the CPU ran them: {', '.join(named)}; other work on the machine does that, or layers that wait; measure "
        "again when it is quiet"
    )
