"""EmulationSettings: what a COSTS.json may say besides its layers for an emulated run: jitter, links, and a slow rank.

    {"layers": [...], "jitter": 0.1, "seed": 7,
     "links": [{"latency_ns": 200000, "bytes_per_s": 1000000000}, {}, {}],
     "faults": [{"kind": "slow", "rank": 2, "factor": 2.0}]}

Jitter and links are known to the prediction or even it out; a fault is what the plan does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fullbore.costs.links import MOST_NS, Link
from fullbore.errors import CostsError
from fullbore.json_file import read_json
from fullbore.nearest import nearest
from fullbore.shown import shown

__all__ = ["EmulationSettings", "SlowRank", "read_emulation"]

_OWN = ("layers", "jitter", "seed", "links", "faults")
_PROFILE = ("device", "dtype", "sequence_length", "microbatch_size", "threads", "torch", "emulated")
"""What a profile writes beside the layers."""

_KINDS = ("slow",)
_MOST = 1000.0


@dataclass(frozen=True, slots=True)
class SlowRank:
    """Every action of ``rank`` takes ``factor`` times as long, whatever layers it holds."""

    rank: int
    factor: float

    def __post_init__(self) -> None:
        if not _is_whole(self.rank) or self.rank < 0:
            raise CostsError(f"the rank of a fault is an integer of at least 0 (given {shown(repr(self.rank))})")
        if not _is_number(self.factor) or not 1 <= self.factor <= _MOST:
            raise CostsError(
                f"the factor of a slow rank is a number from 1 to {_MOST:g} (given {shown(repr(self.factor))})"
            )


@dataclass(frozen=True, slots=True)
class EmulationSettings:
    """How an emulated run departs from its layer costs."""

    jitter: float = 0.0
    """Each duration is scaled by a uniform draw from [1 - jitter, 1 + jitter]."""

    seed: int = 0
    links: tuple[Link, ...] = ()
    """One for each boundary between stages; none: messages take what the real transport takes."""

    faults: tuple[SlowRank, ...] = ()

    def __post_init__(self) -> None:
        if not _is_number(self.jitter) or not 0 <= self.jitter < 1:
            raise CostsError(f"jitter is a share of each duration, 0 or more and less than 1 (given {self.jitter!r})")
        if not _is_whole(self.seed) or self.seed < 0:
            raise CostsError(f"seed is an integer of at least 0 (given {shown(repr(self.seed))})")
        ranks = [fault.rank for fault in self.faults]
        for rank in ranks:
            if ranks.count(rank) > 1:
                raise CostsError(f"a rank is slow by one factor (rank {rank} has {ranks.count(rank)} faults)")

    def slowness(self, *, num_ranks: int) -> tuple[float, ...]:
        """Of each rank: how many times as long it takes."""
        factors = {fault.rank: float(fault.factor) for fault in self.faults}
        return tuple(factors.get(rank, 1.0) for rank in range(num_ranks))

    def require(self, *, num_ranks: int, num_stages: int) -> None:
        """Raises `CostsError` where links or faults do not fit the pipeline."""
        if self.links and len(self.links) != num_stages - 1:
            raise CostsError(
                f"links are one for each boundary between stages: {num_stages - 1} for {num_stages} stages "
                f"(given {len(self.links)}); an empty object is a free link"
            )
        for fault in self.faults:
            if fault.rank >= num_ranks:
                raise CostsError(
                    f"a fault is of a rank that is there: 0 to {num_ranks - 1} with {num_ranks} ranks "
                    f"(given {fault.rank})"
                )

    def document(self) -> dict[str, Any]:
        """The keys of a COSTS.json that say the same; none for what is not used."""
        found: dict[str, Any] = {"jitter": self.jitter, "seed": self.seed} if self.jitter else {}
        if self.links:
            found["links"] = [asdict(link) for link in self.links]
        if self.faults:
            found["faults"] = [{"kind": "slow", **asdict(fault)} for fault in self.faults]
        return found


def read_emulation(path: Path) -> EmulationSettings:
    """What the costs file says besides its layers, which `fullbore.costs.layer.read_costs` reads.

    Raises:
        CostsError: unreadable, an unknown key, or a value that cannot be used.
    """
    document = read_json(path, what="costs file", error=CostsError)
    if not isinstance(document, dict):
        raise CostsError(f'a costs file holds {{"layers": [...]}} ({path} holds a {type(document).__name__})')
    _check_keys(document, (*_OWN, *_PROFILE), where=str(path))
    try:
        return EmulationSettings(
            jitter=document.get("jitter", 0.0),
            seed=document.get("seed", 0),
            links=tuple(_link(entry) for entry in _list(document, "links")),
            faults=tuple(_fault(entry) for entry in _list(document, "faults")),
        )
    except CostsError as error:
        raise CostsError(f"{error} in {path}") from error


def _list(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    entries = document.get(key, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise CostsError(f"{key} is a list of JSON objects (given {shown(repr(entries))})")
    return entries


def _link(entry: dict[str, Any]) -> Link:
    known = tuple(field.name for field in fields(Link))
    _check_keys(entry, known, where=f"a link: {shown(repr(entry))}")
    for key, value in entry.items():
        if not _is_whole(value) and not (key == "bytes_per_s" and value is None):
            raise CostsError(f"{key} is an integer (given {shown(repr(value))})")
        if key == "latency_ns" and value > MOST_NS:
            raise CostsError(f"latency_ns is at most {MOST_NS}, a hundred days (given {shown(repr(value))})")
    return Link(**entry)


def _fault(entry: dict[str, Any]) -> SlowRank:
    where = f"a fault: {shown(repr(entry))}"
    if entry.get("kind") not in _KINDS:
        raise CostsError(f"the kind of a fault is one of {', '.join(_KINDS)} ({where})")
    _check_keys(entry, ("kind", "rank", "factor"), where=where)
    missing = [key for key in ("rank", "factor") if key not in entry]
    if missing:
        raise CostsError(f"a slow rank needs rank and factor ({where} lacks {', '.join(missing)})")
    return SlowRank(entry["rank"], entry["factor"])


def _check_keys(entry: dict[str, Any], known: Sequence[str], *, where: str) -> None:
    for key in entry:
        if key not in known:
            near = nearest(key, known)
            hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"
            raise CostsError(f"unknown key {key!r} ({where}); {hint}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
