"""KeyedPermutation: a shuffled order of n samples that needs no list of n numbers.

A Feistel network over the smallest even number of bits that holds n is a bijection for any round function; walking
along its cycle until the value lies below n ("cycle walking") makes it a bijection of [0, n): J. Black, P. Rogaway,
"Ciphers with Arbitrary Finite Domains", CT-RSA 2002, section 4. So the i-th sample of an epoch is a pure function of
(seed, epoch, i), every rank computes the same one, and the state of the data order is one integer.

Fewer than 4 n values are walked over, so an element takes fewer than 4 passes on average.
"""

from __future__ import annotations

import hashlib
from dataclasses import KW_ONLY, dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["KeyedPermutation", "shuffled"]

_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class KeyedPermutation:
    """The permutation of [0, ``size``) that ``key`` names. Constant memory, no state."""

    size: int
    _: KW_ONLY
    key: str

    def __post_init__(self) -> None:
        assert 1 <= self.size <= 1 << 62, self.size

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The element at each position; positions are in [0, ``size``)."""
        half_bits = max(1, ((self.size - 1).bit_length() + 1) // 2)
        keys = self._round_keys()
        values = positions.astype(np.uint64)
        outside = np.ones(values.shape, dtype=np.bool_)
        while outside.any():
            values[outside] = _feistel(values[outside], keys=keys, half_bits=half_bits)
            outside = values >= np.uint64(self.size)
        return values.astype(np.int64)

    def _round_keys(self) -> NDArray[np.uint64]:
        digest = hashlib.blake2b(self.key.encode(), digest_size=8 * _ROUNDS, person=b"fullbore-order").digest()
        return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def shuffled(consumed: int, *, count: int, num_samples: int, seed: int) -> NDArray[np.int64]:
    """The ``count`` samples after the first ``consumed``, each epoch in an order of its own; they may cross epochs."""
    assert consumed >= 0, consumed
    assert count >= 0, count
    positions = np.arange(consumed, consumed + count, dtype=np.int64)
    epochs, places = np.divmod(positions, num_samples)
    indices = np.empty_like(positions)
    for epoch in np.unique(epochs):
        inside = epochs == epoch
        indices[inside] = KeyedPermutation(num_samples, key=f"{seed}/{epoch}")(places[inside])
    return indices


def _feistel(values: NDArray[np.uint64], *, keys: NDArray[np.uint64], half_bits: int) -> NDArray[np.uint64]:
    """One pass over 2 * ``half_bits`` bits."""
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return (left << shift) | right


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of SplitMix64: every input bit reaches every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
