"""The one-device relaxation: one rank as it is, all the others replaced by the time a microbatch takes through them.

What is left is one machine and m equal jobs. Each job is a chain: the forwards of the rank's stages, then the backwards
for the input in reverse, with a delay between one and the next (the way through the other ranks), a head before the
first (the way to the rank) and a tail after the last (the way back to the first stage, and its weight gradient); and a
backward for the weights after each backward for the input. A forward needs room. No order of the whole pipeline is
faster than the best order of this, so its optimum is a lower bound.

In the shop literature it is the one-machine problem with heads, tails and delayed precedence: Egon Balas, Jan Karel
Lenstra, Alkis Vazacopoulos: The one-machine problem with delayed precedence constraints and its use in job shop
scheduling, Management Science 41 (1995). Equal jobs run in the same order (see `fullbore.synthesis.instance`), so how
many of each kind have run is all that a partial order leaves to the rest, beside the time and the arrivals under way.
Dynamic programming over these counts keeps only what is not dominated (nothing later, nothing arriving later) and
could still end in time, as in Thomas L. Morin, Roy E. Marsten: Branch-and-bound strategies for dynamic programming,
Operations Research 24 (1976); it extends active orders only (B. Giffler, G. L. Thompson, Operations Research 8 (1960)):
an action that fits before the one chosen would have been chosen.

The search is for an order that ends by a given time. Finding none proves that nothing ends by then (a destructive
bound: Robert Klein, Armin Scholl, European Journal of Operational Research 112 (1999)). It counts its states and stops
at a limit; what it had refuted until then stays refuted.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from operator import le

from fullbore.synthesis.instance import Instance

__all__ = ["one_device_bound"]

_WIDTH = 4
"""States a layer of the first, incomplete search: what it finds is often no more than the bound already known."""


def one_device_bound(instance: Instance, *, at_least: int, at_most: int, states: int) -> int:
    """The greatest of the ranks' optima, as far as ``states`` states go; never below ``at_least``.

    Args:
        at_least: a bound already proven.
        at_most: the makespan of a known schedule: the bound cannot be above it, and the search ends there.
    """
    best, left = at_least, states
    jobs = [_Device(instance, rank) for rank in range(instance.num_ranks)]
    jobs.sort(key=lambda job: -job.simple)
    for job in jobs:
        if best >= at_most or left <= 0:
            break
        easy = job.search(by=at_most, limit=left, width=_WIDTH)
        left -= easy.states
        if easy.end is not None and easy.end <= best:
            continue
        by = at_most - 1 if easy.end is None else min(easy.end, at_most) - 1
        while by >= best and left > 0:
            found = job.search(by=by, limit=(left + 1) // 2)
            left -= found.states
            if not found.stopped:
                best = by + 1 if found.end is None else max(best, found.end)
                break
            if by == best:
                break
            by = (best + by) // 2  # the narrower question has fewer answers to look through
    return best


@dataclass(frozen=True, slots=True)
class _Search:
    """What a search found."""

    end: int | None
    """The least end of an order that ends in time; None: there is none, or the search stopped."""

    stopped: bool
    states: int


_State = tuple[int, int, tuple[tuple[int, ...], ...]]
"""Time; when the whole pipeline ends at the earliest because of the last backward; arrivals under way, for every link
of the chain."""

_Counts = tuple[int, ...]
"""How many of each link of the chain have run, then how many backwards for the weights of each stage."""


class _Device:
    """One rank of an instance, as the relaxation sees it. The links of the chain are numbered 0 to 2 v - 1."""

    def __init__(self, instance: Instance, rank: int) -> None:
        stages, f, b, delays = instance.stages[rank], instance.forward, instance.backward_input, instance.delays
        self.num_jobs, self.cap = instance.num_microbatches, instance.caps[rank]
        self.unit, self.early = instance.unit, instance.early
        self.chunks = len(stages)
        self.head = sum(f[s] + delays[s] for s in range(stages[0]))
        self.tail = way = 0
        for stage in range(stages[0] - 1, -1, -1):
            way += delays[stage] + b[stage]
            self.tail = max(self.tail, way + instance.backward_weight[stage])
        self.link = [f[s] for s in stages] + [b[s] for s in reversed(stages)]
        self.weight = [instance.backward_weight[s] for s in reversed(stages)]
        """In the order in which the chain makes them available."""
        pairs = list(pairwise(stages))
        self.delay = [delays[x] + sum(f[s] + delays[s] for s in range(x + 1, y)) for x, y in pairs]
        self.delay.append(instance.round_trips[stages[-1]])
        self.delay += [delays[x] + sum(b[s] + delays[s] for s in range(x + 1, y)) for x, y in reversed(pairs)]
        links = len(self.link)
        self.after = [0] * links
        """[link] from its end to the end of everything, for the same job."""
        self.after[-1] = max(self.tail, self.weight[-1])
        for place in range(links - 2, -1, -1):
            self.after[place] = self.delay[place] + self.link[place + 1] + self.after[place + 1]
        self.work = sum(self.link) + sum(self.weight)
        self.roomy = self.cap >= self.num_jobs * self.chunks * self.unit
        self.simple = self.head + self.num_jobs * self.work

    def search(self, *, by: int, limit: int, width: int | None = None) -> _Search:
        """The least end of an order that ends by ``by``. With a width only that many states are kept of each layer,
        and finding none proves nothing."""
        links, chunks, jobs = len(self.link), self.chunks, self.num_jobs
        nothing = (0,) * (links + chunks)
        layer: dict[_Counts, list[_State]] = {nothing: [(self.head, 0, ((),) * links)]}
        full = (jobs,) * (links + chunks)
        states = 0
        while layer:
            following: dict[_Counts, set[_State]] = {}
            for counts, found in layer.items():
                states += len(found)
                if states > limit:
                    return _Search(None, True, states)
                self._extend(counts, found, by, following)
            if full in following:
                return _Search(min(max(time, end) for time, end, _ in following[full]), False, states)
            layer = {counts: _undominated(found) for counts, found in following.items()}
            if width is not None:
                ranked = sorted((state, counts) for counts, found in layer.items() for state in found)
                layer = {}
                for state, counts in ranked[:width]:
                    layer.setdefault(counts, []).append(state)
        return _Search(None, False, states)

    def _extend(self, counts: _Counts, found: list[_State], by: int, into: dict[_Counts, set[_State]]) -> None:
        """Every state with one action more that could still end by ``by``."""
        links, chunks, jobs = len(self.link), self.chunks, self.num_jobs
        forwards, backwards, weights = sum(counts[:chunks]), sum(counts[chunks:links]), counts[links:]
        kept = self.unit * forwards - self.early * backwards - (self.unit - self.early) * sum(weights)
        room = kept + self.unit <= self.cap
        done = sum(map(int.__mul__, counts, self.link)) + sum(map(int.__mul__, weights, self.weight))
        left = jobs * self.work - done
        waiting = [k for k in range(chunks) if weights[k] < counts[chunks + k]]
        free = [k for k in waiting if not self.weight[k]]
        if free:
            waiting = free[:1]  # takes no time: nothing is lost by doing it now
        elif len(set(self.weight)) == 1:
            waiting = waiting[:1]  # equally long and all available: which one makes no difference
        ready = [
            place
            for place in range(links)
            if counts[place] < jobs
            and (place == 0 or counts[place] < counts[place - 1])
            and (place >= chunks or room)
            and not free
        ]
        for time, end, arrivals in found:
            choices = []
            first_end = by + 1
            for place in ready:
                arrival = arrivals[place][0] if place else time
                start = arrival if arrival > time else time
                choices.append((start, place))
                harmless = place >= chunks or chunks == 1 or self.roomy  # taking room early may lock another chunk out
                if harmless and start + self.link[place] < first_end:
                    first_end = start + self.link[place]
            for k in waiting:
                choices.append((time, links + k))
                first_end = min(first_end, time + self.weight[k])
            for start, place in choices:
                duration = self.link[place] if place < links else self.weight[place - links]
                if start >= first_end and (duration or start > first_end):
                    continue
                now = start + duration
                if now + left - duration > by:
                    continue
                more = (*counts[:place], counts[place] + 1, *counts[place + 1 :])
                under_way, last = list(arrivals), end
                if place < links:
                    if place:
                        under_way[place] = under_way[place][1:]
                    if place + 1 < links:
                        under_way[place + 1] = (*under_way[place + 1], now + self.delay[place])
                    elif more[place] == jobs:
                        last = now + self.tail
                if last > by or not self._in_time(more, now, under_way, by):
                    continue
                clipped = tuple(tuple(a if a > now else now for a in link) for link in under_way)
                into.setdefault(more, set()).add((now, last, clipped))

    def _in_time(self, counts: _Counts, now: int, arrivals: list[tuple[int, ...]], by: int) -> bool:
        """Could the last job still end by ``by``? Before its action of a link come all actions of that and of earlier
        links, and of whatever has to make room for its forward."""
        links, chunks, jobs = len(self.link), self.chunks, self.num_jobs
        work = now
        weights, backwards = sum(counts[links:]), sum(counts[chunks:links])
        forwards_after = sum(counts[:chunks])
        for place in range(links):
            forwards_after -= counts[place] if place < chunks else 0
            remaining = jobs - counts[place]
            if not remaining:
                continue
            work += remaining * self.link[place]
            until = work
            if place < chunks and not self.early:
                ended = jobs * (place + 1) + forwards_after - self.cap // self.unit
                if ended > weights:
                    until += (ended - weights) * min(self.weight)
                if ended > backwards:
                    until += (ended - backwards) * min(self.link[chunks:])
            under_way = arrivals[place]
            if under_way:
                until = max(
                    until,
                    under_way[0] + remaining * self.link[place],
                    under_way[-1] + (remaining - len(under_way) + 1) * self.link[place],
                )
            if until + self.after[place] > by:
                return False
        return True


def _undominated(found: set[_State]) -> list[_State]:
    """Those that no other one is as early as in everything. Sorted by time."""
    kept: list[_State] = []
    for state in sorted(found):
        for other in kept:
            if other[1] <= state[1] and all(
                all(map(le, mine, its)) for mine, its in zip(other[2], state[2], strict=True)
            ):
                break
        else:
            kept.append(state)
    return kept
