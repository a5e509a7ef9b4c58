"""Packing: which documents of a batch share a microbatch, so that no microbatch takes longer than another.

A pipeline waits for its slowest microbatch at every stage, so documents of uneven length cost more than their tokens.
The batch is a choice about training and stays what it is: every document of it is in exactly one microbatch. Only the
grouping changes, and the loss, a sum over one count, does not notice.

Making the largest of m sums small is multiway number partitioning. Two published methods, and the better result counts:

    differencing   N. Karmarkar, R. M. Karp, "The differencing method of set partitioning", UCB/CSD 82/113 (1982):
                   two partial solutions are joined, largest spread first, the heaviest of one with the lightest of
                   the other
    longest first  R. L. Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17 (1969): each
                   document, longest first, to the lightest microbatch with room for it; at most 4/3 - 1/(3m) of the
                   optimum. It can keep to a limit on tokens, where differencing cannot
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from fullbore.errors import DataError

__all__ = ["Packing", "PackingCost", "in_order", "pack"]

Groups = list[list[int]]


@dataclass(frozen=True, slots=True)
class PackingCost:
    """What a microbatch takes, in any unit: ``per_token`` for each token, ``per_pair`` for each pair of tokens that see
    each other, length squared for a document.

    Where attention works on a whole row and masks what is of other documents (transformers' ``eager`` and ``sdpa``), it
    costs the same for every grouping of as many tokens: ``per_pair`` is 0 then, and tokens alone are made even.
    """

    per_token: float = 1.0
    per_pair: float = 0.0

    def __post_init__(self) -> None:
        if not (self.per_token >= 0 and self.per_pair >= 0 and 0 < self.per_token + self.per_pair < float("inf")):
            raise DataError(
                f"a packing cost has weights of 0 or more, not both 0 (per_token={self.per_token}, "
                f"per_pair={self.per_pair})"
            )

    def of(self, length: int) -> float:
        """Of one document."""
        return self.per_token * length + self.per_pair * length * length


TOKENS = PackingCost()


@dataclass(frozen=True, slots=True)
class Packing:
    """Documents by microbatch, as indices into the lengths they were packed from."""

    groups: tuple[tuple[int, ...], ...]
    costs: tuple[float, ...]
    """Of each microbatch."""

    tokens: tuple[int, ...]


def in_order(lengths: Sequence[int], *, num_microbatches: int, cost: PackingCost = TOKENS) -> Packing:
    """Nearly equal numbers of documents, in the order they come in: what a batch is without packing.

    Raises:
        DataError: fewer documents than microbatches, or one without a token.
    """
    _need_documents(lengths, num_microbatches)
    each, more = divmod(len(lengths), num_microbatches)
    edges = [0, *accumulate(each + (index < more) for index in range(num_microbatches))]
    return _packing([list(range(first, end)) for first, end in pairwise(edges)], lengths, cost)


def pack(
    lengths: Sequence[int],
    *,
    num_microbatches: int,
    cost: PackingCost = TOKENS,
    max_tokens: int | None = None,
) -> Packing:
    """Group documents into microbatches of nearly one cost; never a dearer largest one than `in_order` has.

    A pure function: the same lengths give the same groups on every rank. The two lightest microbatches stand first and
    last, where the pipe fills and drains. O(n m log m) for n documents in m microbatches.

    Args:
        lengths: tokens of each document, at least 1.
        max_tokens: the most that a microbatch may hold, for its memory; None is no limit.

    Raises:
        DataError: fewer documents than microbatches, one without a token, or more tokens than the limit has room for.
    """
    _need_documents(lengths, num_microbatches)
    weights = [cost.of(length) for length in lengths]
    plain = in_order(lengths, num_microbatches=num_microbatches, cost=cost)
    found = [
        [list(group) for group in plain.groups],
        _differencing(weights, num_microbatches),
        _longest_first(weights, num_microbatches, fits=lambda index, held: True, lengths=lengths),
    ]
    if max_tokens is not None:
        found.append(_longest_first(weights, num_microbatches, fits=_room(lengths, max_tokens), lengths=lengths))
        found.append(_longest_first(lengths, num_microbatches, fits=_room(lengths, max_tokens), lengths=lengths))
    fitting = [groups for groups in found if _fits(groups, lengths, max_tokens)]
    if not fitting:
        least = min(max(sum(lengths[i] for i in group) for group in groups) for groups in found if all(groups))
        raise DataError(
            f"no packing of {sum(lengths)} tokens (the longest document has {max(lengths)}) into {num_microbatches} "
            f"microbatches of at most {max_tokens} was found; allow {least} tokens, or use more microbatches"
        )
    best = min(fitting, key=lambda groups: _largest(groups, weights))
    return _packing(_lightest_at_the_ends(best, weights), lengths, cost)


def _need_documents(lengths: Sequence[int], num_microbatches: int) -> None:
    if num_microbatches < 1:
        raise DataError(f"documents are packed into at least 1 microbatch (num_microbatches={num_microbatches})")
    if len(lengths) < num_microbatches:
        raise DataError(
            f"every microbatch needs a document ({len(lengths)} documents, {num_microbatches} microbatches); use "
            f"{num_microbatches} documents or more, or at most {len(lengths)} microbatches"
        )
    if min(lengths) < 1:
        raise DataError(f"every document has a token (document {list(lengths).index(min(lengths))} has {min(lengths)})")


def _differencing(weights: Sequence[float], count: int) -> Groups:
    """Each entry of the heap is a partition of some documents into ``count`` groups, heaviest group first."""
    heap: list[tuple[float, int, list[tuple[float, list[int]]]]] = []
    for index, weight in enumerate(weights):
        parts = [(weight, [index]), *((0.0, list[int]()) for _ in range(count - 1))]
        heap.append((-weight if count > 1 else 0.0, index, parts))
    heapq.heapify(heap)
    serial = len(weights)
    while len(heap) > 1:
        (_, _, one), (_, _, other) = heapq.heappop(heap), heapq.heappop(heap)
        joined = [(a + b, left + right) for (a, left), (b, right) in zip(one, reversed(other), strict=True)]
        joined.sort(key=lambda part: (-part[0], part[1]))
        heapq.heappush(heap, (joined[-1][0] - joined[0][0], serial, joined))
        serial += 1
    return [group for _, group in heap[0][2]]


def _longest_first(
    weights: Sequence[float], count: int, *, fits: Callable[[int, int], bool], lengths: Sequence[int]
) -> Groups:
    """``fits(document, tokens held)``; a document that fits nowhere goes to the lightest group all the same."""
    groups: Groups = [[] for _ in range(count)]
    loads, held = [0.0] * count, [0] * count
    for index in sorted(range(len(weights)), key=lambda index: (-weights[index], index)):
        order = sorted(range(count), key=lambda group: (loads[group], group))
        chosen = next((group for group in order if fits(index, held[group])), order[0])
        groups[chosen].append(index)
        loads[chosen] += weights[index]
        held[chosen] += lengths[index]
    return groups


def _room(lengths: Sequence[int], max_tokens: int) -> Callable[[int, int], bool]:
    return lambda index, held: held + lengths[index] <= max_tokens


def _fits(groups: Groups, lengths: Sequence[int], max_tokens: int | None) -> bool:
    """Differencing may leave a group empty where documents are few and one outweighs many."""
    return all(group and (max_tokens is None or sum(lengths[i] for i in group) <= max_tokens) for group in groups)


def _largest(groups: Groups, weights: Sequence[float]) -> float:
    return max(sum(weights[index] for index in group) for group in groups)


def _lightest_at_the_ends(groups: Groups, weights: Sequence[float]) -> Groups:
    ordered = sorted(
        (sorted(group) for group in groups), key=lambda group: (sum(weights[index] for index in group), group)
    )
    return ordered if len(ordered) < 3 else [ordered[0], *reversed(ordered[2:]), ordered[1]]


def _packing(groups: Sequence[Sequence[int]], lengths: Sequence[int], cost: PackingCost) -> Packing:
    return Packing(
        tuple(map(tuple, groups)),
        tuple(sum(cost.of(lengths[index]) for index in group) for group in groups),
        tuple(sum(lengths[index] for index in group) for group in groups),
    )
