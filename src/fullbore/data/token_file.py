"""A file of tokens, for corpora that were tokenised once and are too large for memory.

Format: ``NAME.bin`` is the token ids one after another, unsigned, little-endian, 16 or 32 bits each, nothing else.
Beside it ``NAME.json`` says how to read them::

    {"dtype": "uint16", "vocab_size": 50257, "separator": 50256}

``separator`` is the id between documents and may be absent. Without the sidecar the run file's ``data.vocab_size``
must be given, and ids have 16 bits where that many suffice. The ids are mapped, not read into memory.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from fullbore.errors import DataError

__all__ = ["TokenFile", "open_token_file", "write_token_file"]

_PIECE = 1 << 24
"""Tokens looked at in one go while checking."""


class _Sidecar(msgspec.Struct, omit_defaults=True):
    dtype: Literal["uint16", "uint32"]
    vocab_size: int
    separator: int | None = None


@dataclass(frozen=True, slots=True)
class TokenFile:
    """The tokens of the whole file, read-only, and what the sidecar said."""

    tokens: NDArray[Any]
    vocab_size: int
    separator: int | None
    fingerprint: str


def write_token_file(path: Path, *, tokens: NDArray[Any], vocab_size: int, separator: int | None = None) -> None:
    """Writes ``path`` and its sidecar, with as few bits as the vocabulary allows."""
    _need_in_vocabulary(tokens, vocab_size=vocab_size, path=path, first=0)
    dtype = _smallest_dtype(vocab_size)
    path.with_suffix(".json").write_bytes(msgspec.json.encode(_Sidecar(dtype, vocab_size, separator)))
    tokens.astype(np.dtype(dtype).newbyteorder("<")).tofile(path)


def open_token_file(path: Path, *, vocab_size: int | None = None) -> TokenFile:
    """Maps ``path``, and reads it once to see that every id is inside the vocabulary and to fingerprint it."""
    sidecar = _read_sidecar(path, vocab_size=vocab_size)
    dtype = np.dtype(sidecar.dtype).newbyteorder("<")
    size = path.stat().st_size
    if size == 0 or size % dtype.itemsize:
        raise DataError(
            f"{path} needs a positive multiple of {dtype.itemsize} bytes for {sidecar.dtype} tokens "
            f"(it has {size} bytes); write the file again, or correct the dtype"
        )
    tokens = np.memmap(path, dtype=dtype, mode="r")
    digest = hashlib.sha256(f"{sidecar.dtype}\0{sidecar.vocab_size}\0{sidecar.separator}\0".encode())
    for first in range(0, len(tokens), _PIECE):
        piece = tokens[first : first + _PIECE]
        _need_in_vocabulary(piece, vocab_size=sidecar.vocab_size, path=path, first=first)
        digest.update(piece.data)
    return TokenFile(tokens, sidecar.vocab_size, sidecar.separator, digest.hexdigest())


def _smallest_dtype(vocab_size: int) -> Literal["uint16", "uint32"]:
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def _read_sidecar(path: Path, *, vocab_size: int | None) -> _Sidecar:
    beside = path.with_suffix(".json")
    if not beside.is_file():
        if vocab_size is None:
            raise DataError(
                f'{path} needs its vocabulary size: write {beside.name} beside it, such as {{"dtype": "uint16", '
                '"vocab_size": 50257}, or set data.vocab_size'
            )
        return _Sidecar(_smallest_dtype(vocab_size), vocab_size)
    try:
        sidecar = msgspec.json.decode(beside.read_bytes(), type=_Sidecar)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f'{beside} must read like {{"dtype": "uint16", "vocab_size": 50257}}: {error}') from None
    if vocab_size is not None and vocab_size != sidecar.vocab_size:
        raise DataError(
            f"data.vocab_size and {beside} disagree ({vocab_size} and {sidecar.vocab_size}); leave data.vocab_size out"
        )
    return sidecar


def _need_in_vocabulary(tokens: NDArray[Any], *, vocab_size: int, path: Path, first: int) -> None:
    if tokens.size and int(tokens.max()) >= vocab_size:
        at = int(np.argmax(tokens >= vocab_size))
        raise DataError(
            f"{path} has token {int(tokens[at])} at position {first + at}, outside its vocabulary of {vocab_size} "
            f"(ids 0 to {vocab_size - 1}); tokenise it again, or correct the vocabulary size and the dtype"
        )
