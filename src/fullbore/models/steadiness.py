"""Did other work disturb the measurement of the layers? Then what they cost is a guess, and so is the cut.

A round would take, undisturbed, what its fastest repetition took, or the part of it in which the CPU ran it, whichever
is less. The repetitions show load that comes and goes; the CPU's time also shows load that lasts for all of them, and
where there was time for one round only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

__all__ = ["LayerRounds", "said_of_load"]

_DISTURBED = 1.5
"""Times as long as undisturbed. Models of 0.6 and 6.5 million parameters on two cores took from 1.01 to 1.3 where a
core was free; with a spinning process for each core, or with two threads on the one that is left, from 1.5 to 25."""

_MATTERS = 0.03
"""Of all layers' time: a shorter one (an embedding of a millisecond) varies most and decides nothing."""

_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class LayerRounds:
    """What one layer took, round by round, those of layers that are alike among them; at least one round."""

    name: str
    wall_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]
    """Of the calling thread; none where another device computes."""

    @property
    def disturbed(self) -> float:
        """How many times as long as undisturbed the usual round took."""
        quiet = min([*self.wall_ns, *([median(self.cpu_ns)] if self.cpu_ns else [])])
        return median(self.wall_ns) / quiet if quiet else 1.0


def said_of_load(layers: Sequence[LayerRounds]) -> str | None:
    """A warning that names the layers whose costs are uncertain; None where the machine was quiet."""
    least = _MATTERS * sum(median(layer.wall_ns) for layer in layers)
    uncertain = [one for one in layers if one.disturbed >= _DISTURBED and median(one.wall_ns) >= least]
    if not uncertain:
        return None
    named = []
    for factor, group in groupby(uncertain, key=lambda one: one.disturbed):
        names = [one.name for one in group]
        which = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        named.append(f"{which} ({factor:.1f} times)")
    more = len(named) - _MOST_NAMED
    named = [*named[:_MOST_NAMED], *([f"{more} more"] if more > 0 else [])]
    return (
        "warning: this machine was busy with other work while the layers were measured, so their costs are uncertain; "
        f"longer than undisturbed took {', '.join(named)}; measure again when it is quiet"
    )
