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
from fullbore.data.batches import SampleOrder, Samples
from fullbore.data.datasets_folder import datasets_documents, is_datasets_folder
from fullbore.data.document import Document, fingerprint
from fullbore.data.documents import DocumentOrder
from fullbore.data.files import need_source
from fullbore.data.holdout import split_documents
from fullbore.data.jsonl import jsonl_documents
from fullbore.data.packing import PackingCost
from fullbore.data.stdlib_corpus import stdlib_documents
from fullbore.data.text import Text
from fullbore.data.text_folder import text_documents
from fullbore.data.token_file import open_token_file
from fullbore.data.tokenizer import Tokenizer, open_tokenizer
from fullbore.errors import DataError

__all__ = ["Corpus", "open_corpus"]


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """Two runs of tokens without a document in common."""

    train: Text
    heldout: Text
    """Empty where ``data.holdout_fraction`` is 0."""

    vocab_size: int
    fingerprint: str
    """Of text and tokenizer: the same on every machine of a run, or they train on different data."""

    description: str

    def training_order(self, config: DataConfig) -> Samples:
        """The samples to train on. Raises DataError where there is not one."""
        return _order(self.train, config, vocab_size=self.vocab_size)

    def heldout_order(self, config: DataConfig) -> Samples | None:
        """The samples to evaluate on; None without held-out tokens."""
        return _order(self.heldout, config, vocab_size=self.vocab_size) if len(self.heldout) else None


def open_corpus(config: DataConfig) -> Corpus:
    """Reads, tokenises and splits. Refuses a corpus too small for one sample on either side."""
    path = Path(config.source)
    try:
        corpus = _from_token_file(path, config) if path.suffix == ".bin" else _from_documents(path, config)
    except OSError as error:
        raise DataError(f"data.source {config.source} cannot be read: {error}") from error
    for part, text in (("training", corpus.train), ("held-out", corpus.heldout)):
        if part == "held-out" and config.holdout_fraction == 0:
            continue
        try:
            _order(text, config, vocab_size=corpus.vocab_size)
        except DataError as error:
            raise DataError(
                f"the {part} part of data.source {config.source} is too small: {error}; or change "
                f"data.holdout_fraction ({config.holdout_fraction}; 0 for no evaluation data)"
            ) from None
    return corpus


def _order(text: Text, config: DataConfig, *, vocab_size: int) -> Samples:
    sequence_length, seed = config.sequence_length, config.seed
    if config.documents == "joined":
        return SampleOrder(text.tokens, sequence_length=sequence_length, seed=seed, vocab_size=vocab_size)
    return DocumentOrder(
        text.tokens,
        text.edges(source=config.source),
        sequence_length=sequence_length,
        seed=seed,
        vocab_size=vocab_size,
        grouping=config.documents,
        cost=PackingCost(per_pair=config.pair_cost),
    )


def _from_token_file(path: Path, config: DataConfig) -> Corpus:
    need_source(path)
    file = open_token_file(path, vocab_size=config.vocab_size)
    cut = _tail_start(file.tokens, fraction=config.holdout_fraction, separator=file.separator)
    description = f"{path.name}: {len(file.tokens):,} tokens, vocabulary {file.vocab_size:,}"
    train, heldout = Text(file.tokens, file.separator).cut(cut)
    return Corpus(train, heldout, file.vocab_size, file.fingerprint, description)


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
        train, heldout = train.cut(_tail_start(train.tokens, fraction=config.holdout_fraction, separator=None))
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
    need_source(path)
    if path.suffix == ".jsonl":
        return jsonl_documents(path)
    return datasets_documents(path) if is_datasets_folder(path) else text_documents(path)


def _joined(documents: Sequence[Document], tokenizer: Tokenizer) -> Text:
    """One run of tokens, the separator behind every document."""
    pieces = tokenizer.encode(documents)
    if not pieces:
        return Text(np.empty(0, dtype=np.uint8), tokenizer.separator)
    if tokenizer.separator is not None:
        end = np.array([tokenizer.separator], dtype=pieces[0].dtype)
        pieces = [np.concatenate([piece, end]) for piece in pieces]
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    return Text(np.concatenate(pieces), tokenizer.separator, ends)


def _tail_start(tokens: NDArray[Any], *, fraction: float, separator: int | None) -> int:
    """Where the held-out end of one run of tokens begins: behind a separator where there is one in the tail."""
    cut = len(tokens) - int(len(tokens) * fraction)
    if separator is not None and fraction:
        ends = np.flatnonzero(tokens[cut:] == separator)
        if len(ends) and cut + ends[0] + 1 < len(tokens):
            return cut + int(ends[0]) + 1
    return cut
