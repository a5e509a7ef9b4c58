"""How far back a gradient comes: which inputs of a layer any of what it gives is made from, in autograd's graph.

A layer may detach what it is given, or look at it without a gradient. In one process the layers before it then have no
gradient at all, which is another thing to an optimizer than zeros: momentum and weight decay move what has zeros.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.autograd.graph import get_gradient_edge

__all__ = ["Ends", "edges_of", "reached"]

Ends = frozenset[tuple[Any, int]]
"""Places in a graph: a node, and which of its outputs."""


def edges_of(tensors: Iterable[Tensor]) -> tuple[tuple[Any, int] | None, ...]:
    """Where each is in its graph now; None for one without a gradient. (An operation in place moves it on.)"""
    edges = [get_gradient_edge(tensor) if tensor.requires_grad else None for tensor in tensors]
    return tuple(None if edge is None else (edge.node, edge.output_nr) for edge in edges)


def reached(roots: Iterable[tuple[Any, int] | None]) -> Ends:
    """Every place to which a backward from ``roots`` comes, those among them."""
    open_ends = [root for root in roots if root is not None]
    found = set(open_ends)
    while open_ends:
        node, _ = open_ends.pop()
        for end in node.next_functions:
            if end[0] is not None and end not in found:
                found.add(end)
                open_ends.append(end)
    return frozenset(found)
