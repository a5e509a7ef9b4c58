"""Was the measurement of the layers disturbed? Then what they cost is a guess, and so is the cut.

A round would take, undisturbed, what its fastest repetition took, or the part of it in which the CPU ran it, whichever
is less. The repetitions show load that comes and goes; the CPU's time also shows load that lasts for all of them, and
where there was time for one round only. A layer that waits by itself, for a file say, looks the same.
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
    """What one layer took, round by round, those of layers that are alike among them; at least one round."""

    name: str
    wall_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]
    """Of the calling thread; none where another device computes."""

    @property
    def slowdown(self) -> float:
        """How many times as long as undisturbed the usual round took."""
        quiet = min([*self.wall_ns, *([median(self.cpu_ns)] if self.cpu_ns else [])])
        return median(self.wall_ns) / quiet if quiet else 1.0


def warn_of_slow_rounds(layers: Sequence[LayerRounds]) -> str | None:
    """A warning that names the layers whose costs are uncertain, those that were measured together as one; None where
    there are none."""
    least = _MATTERS * sum(median(layer.wall_ns) for layer in layers)
    groups: dict[float, list[int]] = {}
    for index, layer in enumerate(layers):
        if layer.slowdown >= _UNCERTAIN and median(layer.wall_ns) >= least:
            groups.setdefault(layer.slowdown, []).append(index)
    if not groups:
        return None
    names = [layer.name for layer in layers]
    named = [f"{name_ranges(group, layer_names=names)} ({factor:.1f} times)" for factor, group in groups.items()]
    more = len(named) - _MOST_NAMED
    named = [*named[:_MOST_NAMED], *([f"{more} more"] if more > 0 else [])]
    return (
        "warning: the usual round of some layers took longer than the fastest one, or than the CPU ran it: other work "
        "on the machine, or layers that wait, make their costs uncertain; longer than undisturbed took "
        f"{', '.join(named)}; measure again when the machine is quiet"
    )
