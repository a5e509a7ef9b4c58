"""Tokenizers: text to token ids. Bytes, which need no file, or a tokenizers JSON.

The byte tokenizer has exactly 256 ids. Text never holds a NUL byte (`fullbore.data.document` refuses it), so id 0
is free to separate documents and no id beyond the bytes is needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fullbore.bounded_file import read_bounded
from fullbore.data.document import Document
from fullbore.data.files import need_tokenizer
from fullbore.errors import DataError

__all__ = ["ByteTokenizer", "FileTokenizer", "Tokenizer", "open_tokenizer"]

_SEPARATORS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[SEP]")
"""Names under which tokenizers know the end of a document, in the order they are looked for."""


class Tokenizer(Protocol):
    """What a corpus needs of a tokenizer."""

    @property
    def description(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def separator(self) -> int | None:
        """The id put behind every document; None where the tokenizer has none."""

    @property
    def fingerprint(self) -> str: ...

    def encode(self, documents: Sequence[Document]) -> list[NDArray[Any]]:
        """One array of ids a document, without a separator."""


class ByteTokenizer:
    """One id per byte."""

    description = "bytes"
    vocab_size = 256
    separator = 0
    fingerprint = "bytes"

    def encode(self, documents: Sequence[Document]) -> list[NDArray[Any]]:
        return [np.frombuffer(document.text, dtype=np.uint8) for document in documents]


class FileTokenizer:
    """A tokenizer saved as JSON by Hugging Face tokenizers."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer as Encoder

        need_tokenizer(path)
        try:
            content = read_bounded(path)
            self._encoder: Any = Encoder.from_buffer(content)
        except OSError as error:
            raise DataError(f"cannot read data.tokenizer {path}: {error.strerror}") from error
        except Exception as error:  # the library raises plain Exception
            raise DataError(f"data.tokenizer {path} is not a tokenizers JSON: {error}") from None
        self._encoder.no_truncation()
        self._encoder.no_padding()
        names = self._encoder.get_vocab(with_added_tokens=True)
        self.vocab_size: int = max(names.values(), default=-1) + 1
        self.separator: int | None = next((names[name] for name in _SEPARATORS if name in names), None)
        self.description = path.name
        self.fingerprint = hashlib.sha256(content).hexdigest()

    def encode(self, documents: Sequence[Document]) -> list[NDArray[Any]]:
        texts = [document.text.decode() for document in documents]
        dtype = np.uint16 if self.vocab_size <= 1 << 16 else np.uint32
        encoded = self._encoder.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=dtype) for encoding in encoded]


def open_tokenizer(name: str) -> Tokenizer:
    """``bytes``, or the path of a tokenizers JSON."""
    return ByteTokenizer() if name == "bytes" else FileTokenizer(Path(name))
