"""Corpus: the tokens of a run, for training and for evaluation, from whichever source the run file names."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fullbore.config.run import DataConfig
from fullbore.data.batches import SampleOrder
from fullbore.data.datasets_folder import datasets_documents, is_datasets_folder
from fullbore.data.document import Document, fingerprint
from fullbore.data.holdout import split_documents
from fullbore.data.jsonl import jsonl_documents
from fullbore.data.stdlib_corpus import stdlib_documents
from fullbore.data.text_folder import text_documents
from fullbore.data.token_file import open_token_file
from fullbore.data.tokenizer import Tokenizer, open_tokenizer
from fullbore.errors import DataError

__all__ = ["Corpus", "open_corpus"]


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """Two runs of tokens without a document in common."""

    train: NDArray[Any]
    heldout: NDArray[Any]
    """Empty where ``data.holdout_fraction`` is 0."""

    vocab_size: int
    fingerprint: str
    """Of text and tokenizer: the same on every machine of a run, or they train on different data."""

    description: str

    def training_order(self, config: DataConfig) -> SampleOrder:
        """The samples to train on. Raises DataError where there is not one."""
        return self._order(self.train, config)

    def heldout_order(self, config: DataConfig) -> SampleOrder | None:
        """The samples to evaluate on; None without held-out tokens."""
        return self._order(self.heldout, config) if len(self.heldout) else None

    def _order(self, tokens: NDArray[Any], config: DataConfig) -> SampleOrder:
        return SampleOrder(tokens, sequence_length=config.sequence_length, seed=config.seed, vocab_size=self.vocab_size)


def open_corpus(config: DataConfig) -> Corpus:
    """Reads, tokenises and splits. Refuses a corpus too small for one sample on either side."""
    path = Path(config.source)
    corpus = _from_token_file(path, config) if path.suffix == ".bin" else _from_documents(path, config)
    for part, tokens in (("training", corpus.train), ("held-out", corpus.heldout)):
        if part == "held-out" and config.holdout_fraction == 0:
            continue
        try:
            SampleOrder(tokens, sequence_length=config.sequence_length, seed=config.seed, vocab_size=corpus.vocab_size)
        except DataError as error:
            raise DataError(
                f"the {part} part of data.source {config.source} is too small: {error}; or change "
                f"data.holdout_fraction ({config.holdout_fraction}; 0 for no evaluation data)"
            ) from None
    return corpus


def _from_token_file(path: Path, config: DataConfig) -> Corpus:
    _need_exists(path)
    file = open_token_file(path, vocab_size=config.vocab_size)
    cut = _tail_start(file.tokens, fraction=config.holdout_fraction, separator=file.separator)
    description = f"{path.name}: {len(file.tokens):,} tokens, vocabulary {file.vocab_size:,}"
    return Corpus(file.tokens[:cut], file.tokens[cut:], file.vocab_size, file.fingerprint, description)


def _from_documents(path: Path, config: DataConfig) -> Corpus:
    if config.vocab_size is not None:
        raise DataError(
            f"data.vocab_size is only for .bin files without a sidecar (source={config.source}, "
            f"vocab_size={config.vocab_size}); the tokenizer says it, so leave it out"
        )
    tokenizer = open_tokenizer(config.tokenizer)
    documents = _documents(path, config)
    split = split_documents(documents, fraction=config.holdout_fraction)
    train, heldout = _joined(split.train, tokenizer), _joined(split.heldout, tokenizer)
    if not split.heldout and config.holdout_fraction:
        cut = _tail_start(train, fraction=config.holdout_fraction, separator=None)
        train, heldout = train[:cut], train[cut:]
    digest = hashlib.sha256(f"{fingerprint(documents)}\0{tokenizer.fingerprint}".encode()).hexdigest()
    description = (
        f"{config.source}: {len(documents):,} documents, {sum(len(d.text) for d in documents) / 1e6:.2f} MB, "
        f"{len(train):,} tokens to train and {len(heldout):,} held out ({tokenizer.description}, "
        f"vocabulary {tokenizer.vocab_size:,})"
    )
    return Corpus(train, heldout, tokenizer.vocab_size, digest, description)


def _documents(path: Path, config: DataConfig) -> tuple[Document, ...]:
    if config.source == "stdlib":
        return stdlib_documents()
    _need_exists(path)
    if path.suffix == ".jsonl":
        return jsonl_documents(path)
    return datasets_documents(path) if is_datasets_folder(path) else text_documents(path)


def _joined(documents: Sequence[Document], tokenizer: Tokenizer) -> NDArray[Any]:
    """One run of tokens, the separator behind every document."""
    pieces = tokenizer.encode(documents)
    if not pieces:
        return np.empty(0, dtype=np.uint8)
    if tokenizer.separator is not None:
        end = np.array([tokenizer.separator], dtype=pieces[0].dtype)
        pieces = [part for piece in pieces for part in (piece, end)]
    return np.concatenate(pieces)


def _tail_start(tokens: NDArray[Any], *, fraction: float, separator: int | None) -> int:
    """Where the held-out end of one run of tokens begins: behind a separator where there is one in the tail."""
    cut = len(tokens) - int(len(tokens) * fraction)
    if separator is not None and fraction:
        ends = np.flatnonzero(tokens[cut:] == separator)
        if len(ends) and cut + ends[0] + 1 < len(tokens):
            return cut + int(ends[0]) + 1
    return cut


def _need_exists(path: Path) -> None:
    if not path.exists():
        raise DataError(
            f'data.source {path} does not exist; use "stdlib", a folder of text, a .jsonl file, a .bin file of tokens '
            "or a folder written by Hugging Face datasets"
        )
