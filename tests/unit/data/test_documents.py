"""Documents as samples: each token counted once, and the same documents in a step however they are grouped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from fullbore.config.run import DataConfig
from fullbore.data.batches import Samples
from fullbore.data.corpus import open_corpus
from fullbore.data.documents import DocumentOrder
from fullbore.data.packing import PackingCost
from fullbore.data.rows import Piece, Rows, packed, padded
from fullbore.data.token_file import write_token_file
from fullbore.errors import ConfigError, DataError
from fullbore.labels import IGNORED_LABEL

Grouping = Literal["padded", "packed", "balanced"]


def order(*lengths: int, grouping: Grouping = "packed", sequence_length: int = 8, cost: float = 0.0) -> DocumentOrder:
    """Documents of these many tokens, numbered on; the number says the place."""
    edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return DocumentOrder(
        np.arange(edges[-1]),
        edges,
        sequence_length=sequence_length,
        seed=0,
        vocab_size=10_000,
        grouping=grouping,
        cost=PackingCost(per_pair=cost),
    )


def test_a_document_of_one_more_token_gives_inputs_and_their_successors() -> None:
    (piece,) = order(5).draw(0, count=1)
    assert (piece.input_ids.tolist(), piece.labels.tolist()) == ([0, 1, 2, 3], [1, 2, 3, 4])


def test_longer_documents_are_cut_and_no_token_is_lost_or_crosses() -> None:
    """20 tokens are 19 inputs, 8 + 8 + 3; a document of one token has no successor to learn."""
    samples = order(20, 1, 9, 2, 8)
    pieces = samples.draw(0, count=samples.num_samples)
    assert sorted(len(piece) for piece in pieces) == [1, 3, 7, 8, 8, 8]
    seen = sorted(token for piece in pieces for token in piece.input_ids.tolist())
    assert seen == sorted({*range(40)} - {19, 20, 29, 31, 39}), "all but the last token of each document"
    assert all((piece.labels == piece.input_ids + 1).all() for piece in pieces)


def test_every_epoch_has_each_piece_once_in_another_order() -> None:
    samples = order(*range(2, 12))
    count = samples.num_samples
    epochs = [[piece.sample_id for piece in samples.draw(first, count=count)] for first in (0, count, 2 * count)]
    assert all(sorted(epoch) == list(range(count)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    across = [piece.sample_id for piece in samples.draw(count - 1, count=2)]
    assert across == [epochs[0][-1], epochs[1][0]]


@pytest.mark.parametrize("grouping", ["padded", "packed", "balanced"])
def test_a_step_has_the_same_documents_however_they_are_grouped(grouping: Grouping) -> None:
    lengths = [3, 9, 2, 7, 4, 30, 5, 2, 6, 8, 3, 2]
    samples = order(*lengths, grouping=grouping, sequence_length=16)
    rows = samples.microbatches(3, count=12, num_microbatches=4)
    assert len(rows) == 4
    pieces = samples.draw(3, count=12)
    counted = sorted(token for piece in pieces for token in piece.labels.tolist())
    assert counted == sorted(label for row in rows for label in row.labels.flatten().tolist() if label >= 0)


def test_balanced_microbatches_are_alike_where_those_in_order_are_not() -> None:
    source = np.random.default_rng(0)
    lengths = np.minimum(2 + source.lognormal(4, 1, 64).astype(int), 512).tolist()

    def sizes(grouping: Grouping) -> list[int]:
        samples = order(*lengths, grouping=grouping, sequence_length=512)
        return [row.input_ids.size for row in samples.microbatches(0, count=64, num_microbatches=8)]

    assert max(sizes("packed")) > 1.5 * sum(sizes("packed")) / 8
    assert max(sizes("balanced")) < 1.02 * sum(sizes("balanced")) / 8
    assert sum(sizes("padded")) > 1.5 * sum(sizes("packed"))


def test_no_microbatch_is_larger_than_full_documents_would_make_it() -> None:
    """By pairs alone one microbatch would hold all short documents; memory goes with tokens."""
    lengths = [9, 9, *[2] * 30, 9, 9]
    rows = order(*lengths, grouping="balanced", cost=1e6).microbatches(0, count=34, num_microbatches=17)
    assert max(row.input_ids.size for row in rows) <= 2 * 8


def piece(*tokens: int) -> Piece:
    return Piece(np.array(tokens), np.array(tokens) + 1, 0)


def test_packed_rows_count_positions_from_0_for_each_document() -> None:
    rows = packed([piece(5, 6, 7), piece(9), piece(1, 2)])
    assert rows.input_ids.tolist() == [[5, 6, 7, 9, 1, 2]]
    assert rows.labels.tolist() == [[6, 7, 8, 10, 2, 3]]
    assert rows.position_ids is not None
    assert rows.position_ids.tolist() == [[0, 1, 2, 0, 0, 1]]
    assert rows.attention_mask is None, "position ids make the mask only where there is none"


def test_padded_rows_mask_what_does_not_count() -> None:
    rows = padded([piece(5, 6, 7), piece(9)])
    assert rows.input_ids.tolist() == [[5, 6, 7], [9, 0, 0]]
    assert rows.labels.tolist() == [[6, 7, 8], [10, IGNORED_LABEL, IGNORED_LABEL]]
    assert rows.attention_mask is not None
    assert rows.attention_mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert padded([piece(5), piece(6)]).attention_mask is None


def texts(folder: Path, *lines: str) -> Path:
    path = folder / "t.jsonl"
    path.write_text("\n".join(json.dumps({"text": line}) for line in lines))
    return path


def decoded(samples: Samples, count: int) -> set[bytes]:
    rows: list[Rows] = list(samples.microbatches(0, count=count, num_microbatches=count))
    return {bytes([*row.input_ids[0], row.labels[0, -1]]) for row in rows}


def test_documents_of_a_source_with_their_separators(tmp_path: Path) -> None:
    path = texts(tmp_path, "one", "three", "x" * 10)
    config = DataConfig(source=str(path), documents="packed", sequence_length=8, holdout_fraction=0)
    samples = open_corpus(config).training_order(config)
    assert samples.num_samples == 4
    assert decoded(samples, 4) == {b"one\0", b"three\0", b"x" * 9, b"xx\0"}


def test_a_file_of_tokens_tells_documents_by_its_separator(tmp_path: Path) -> None:
    tokens = np.frombuffer(b"one\0three\0seven\0", np.uint8).astype(np.int64)
    write_token_file(tmp_path / "t.bin", tokens=tokens, vocab_size=256, separator=0)
    config = DataConfig(source=str(tmp_path / "t.bin"), documents="padded", sequence_length=8, holdout_fraction=0.4)
    corpus = open_corpus(config)
    heldout = corpus.heldout_order(config)
    assert heldout is not None
    assert decoded(corpus.training_order(config), 2) == {b"one\0", b"three\0"}
    assert decoded(heldout, 1) == {b"seven\0"}


def test_a_file_of_tokens_without_separator_has_no_documents(tmp_path: Path) -> None:
    write_token_file(tmp_path / "t.bin", tokens=np.arange(100), vocab_size=256)
    config = DataConfig(source=str(tmp_path / "t.bin"), documents="balanced", sequence_length=8, holdout_fraction=0)
    with pytest.raises(
        ConfigError,
        match=r'^data.documents other .* needs to know where documents end, .* use data.documents = "joined"',
    ):
        open_corpus(config)


def test_documents_without_a_second_token_are_no_samples() -> None:
    with pytest.raises(DataError, match=r"from 2 tokens on, its separator included \(none of 3 documents has them\)"):
        order(1, 1, 1)
