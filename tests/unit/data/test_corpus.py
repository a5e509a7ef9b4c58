"""Corpora: stable, split without overlap, refused when too small."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fullbore.bounded_file import MOST_BYTES
from fullbore.config.run import DataConfig
from fullbore.data.corpus import Corpus, open_corpus
from fullbore.data.document import Document
from fullbore.data.holdout import split_documents
from fullbore.data.stdlib_corpus import stdlib_documents
from fullbore.data.token_file import write_token_file
from fullbore.data.tokenizer import open_tokenizer
from fullbore.errors import DataError


def text_folder(folder: Path, *, count: int = 40) -> Path:
    folder.mkdir()
    for index in range(count):
        (folder / f"{index:03}.txt").write_text(f"document number {index} " * (1 + index % 5))
    return folder


def documents_of(tokens: np.ndarray, *, separator: int = 0) -> set[bytes]:
    pieces = np.split(tokens, np.flatnonzero(tokens == separator) + 1)
    return {bytes(piece[:-1].astype(np.uint8)) for piece in pieces if len(piece)}


def test_the_standard_library_is_large_and_the_same_twice() -> None:
    first, second = open_corpus(DataConfig()), open_corpus(DataConfig())
    assert first.fingerprint == second.fingerprint
    assert np.array_equal(first.train.tokens, second.train.tokens)
    assert np.array_equal(first.heldout.tokens, second.heldout.tokens)
    assert len(first.train) + len(first.heldout) >= 5_000_000
    assert first.vocab_size == 256
    assert "held out (bytes, vocabulary 256)" in first.description


def test_the_standard_library_leaves_tests_and_packages_out() -> None:
    names = [document.name for document in stdlib_documents()]
    assert names == sorted(names)
    assert "asyncio/tasks.py" in names
    left_out = {"test", "tests", "idlelib", "lib2to3", "encodings", "pydoc_data", "site-packages"}
    assert not [name for name in names if left_out & set(name.split("/"))]


def test_heldout_documents_are_not_trained_on(tmp_path: Path) -> None:
    corpus = open_corpus(DataConfig(source=str(text_folder(tmp_path / "t")), sequence_length=8, holdout_fraction=0.2))
    train, heldout = documents_of(corpus.train.tokens), documents_of(corpus.heldout.tokens)
    assert not train & heldout
    assert len(train | heldout) == 40
    share = len(corpus.heldout.tokens) / (len(corpus.train.tokens) + len(corpus.heldout.tokens))
    assert 0.1 < share <= 0.21


def test_copies_of_a_text_fall_on_one_side() -> None:
    documents = [Document(str(index), b"text %d" % (index % 10)) for index in range(30)]
    split = split_documents(documents, fraction=0.3)
    assert {d.text for d in split.train}.isdisjoint(d.text for d in split.heldout)
    assert len(split.train) + len(split.heldout) == 30
    assert len(split.heldout) == 9


def test_the_split_does_not_depend_on_the_order_or_the_seed() -> None:
    documents = [Document(str(index), b"text %d" % index) for index in range(30)]
    forward = split_documents(documents, fraction=0.2)
    backward = split_documents(documents[::-1], fraction=0.2)
    assert set(forward.heldout) == set(backward.heldout)


def test_the_shortest_document_is_held_out_when_none_fits() -> None:
    documents = [Document("a", b"x" * 50), Document("b", b"y" * 40)]
    assert split_documents(documents, fraction=0.05).heldout == (documents[1],)


def test_a_single_document_holds_out_its_end(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("abcdefghij" * 10)
    corpus = open_corpus(DataConfig(source=str(tmp_path / "one.txt"), sequence_length=4, holdout_fraction=0.2))
    assert len(corpus.heldout.tokens) == 20
    assert bytes(corpus.heldout.tokens.astype(np.uint8)) == (b"abcdefghij" * 10 + b"\0")[-20:]


def test_no_holdout(tmp_path: Path) -> None:
    corpus = open_corpus(DataConfig(source=str(text_folder(tmp_path / "t")), sequence_length=8, holdout_fraction=0))
    assert len(corpus.heldout.tokens) == 0


def test_the_fingerprint_sees_text_names_and_tokenizer(tmp_path: Path) -> None:
    def corpus(folder: Path, **changes: object) -> Corpus:
        return open_corpus(DataConfig(source=str(folder), sequence_length=8, **changes))  # type: ignore[arg-type]

    first, second = text_folder(tmp_path / "a"), text_folder(tmp_path / "b")
    tokenizer = str(trained_tokenizer(tmp_path))
    assert corpus(first).fingerprint == corpus(second).fingerprint
    assert corpus(first).fingerprint != corpus(first, tokenizer=tokenizer).fingerprint
    (second / "000.txt").rename(second / "1000.txt")
    assert corpus(first).fingerprint != corpus(second).fingerprint


def test_a_tokenizer_without_end_is_not_read(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    huge = tmp_path / "tokenizer.json"
    with huge.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(DataError, match=r"cannot read data\.tokenizer .*tokenizer\.json: it is larger than 256 MiB"):
        open_tokenizer(str(huge))


def trained_tokenizer(folder: Path, *, separator: str = "<|endoftext|>") -> Path:
    """A byte-level BPE of 300 tokens, trained here: no download."""
    tokenizers = pytest.importorskip("tokenizers")
    encoder = tokenizers.Tokenizer(tokenizers.models.BPE())
    encoder.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[separator],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    encoder.train_from_iterator([f"document number {index} " for index in range(40)], trainer)
    path = folder / "tokenizer.json"
    encoder.save(str(path))
    return path


def test_a_tokenizers_file(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = trained_tokenizer(tmp_path)
    source = text_folder(tmp_path / "t")
    config = DataConfig(source=str(source), tokenizer=str(path), sequence_length=4, holdout_fraction=0)
    corpus = open_corpus(config)
    encoder = tokenizers.Tokenizer.from_file(str(path))
    end = encoder.token_to_id("<|endoftext|>")
    assert corpus.vocab_size == encoder.get_vocab_size()
    assert int((corpus.train.tokens == end).sum()) == 40
    assert corpus.train.tokens[-1] == end
    pieces = np.split(corpus.train.tokens, np.flatnonzero(corpus.train.tokens == end) + 1)
    texts = [encoder.decode(piece[:-1].tolist()) for piece in pieces[:-1]]
    assert texts == [file.read_text() for file in sorted(source.iterdir())]


def test_a_tokenizer_that_knows_no_separator_joins_documents_without_one(tmp_path: Path) -> None:
    path = trained_tokenizer(tmp_path, separator="<other>")
    source = text_folder(tmp_path / "t", count=3)
    corpus = open_corpus(DataConfig(source=str(source), tokenizer=str(path), sequence_length=2, holdout_fraction=0))
    assert 0 not in corpus.train.tokens.tolist()


@pytest.mark.parametrize(
    ("content", "message"), [(None, r"is not a file; use \"bytes\" or"), ("{}", "is not a tokenizers JSON")]
)
def test_a_bad_tokenizers_file(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=message):
        open_corpus(DataConfig(tokenizer=str(path)))


def test_jsonl_and_token_files_through_the_run_file(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"line {index}"}) for index in range(20)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    corpus = open_corpus(DataConfig(source=str(tmp_path / "t.jsonl"), sequence_length=4, holdout_fraction=0))
    assert documents_of(corpus.train.tokens) == {b"line %d" % index for index in range(20)}

    write_token_file(tmp_path / "t.bin", tokens=corpus.train.tokens, vocab_size=256, separator=0)
    same = open_corpus(DataConfig(source=str(tmp_path / "t.bin"), sequence_length=4, holdout_fraction=0.3))
    assert np.array_equal(np.concatenate([same.train.tokens, same.heldout.tokens]), corpus.train.tokens)
    assert same.train.tokens[-1] == 0
    assert 0.15 < len(same.heldout.tokens) / len(corpus.train.tokens) <= 0.3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "nowhere"}, r"data\.source nowhere does not exist; use \"stdlib\", a folder"),
        ({"source": "nowhere.bin"}, r"data\.source nowhere\.bin does not exist"),
        ({"sequence_length": 10**8}, r"training part of data\.source stdlib is too small: .* needs 100000001 tokens"),
        ({"holdout_fraction": 1e-5}, r"held-out part .*needs 257 tokens \(the corpus has \d+\)"),
        ({"vocab_size": 300}, r"only for \.bin files without a sidecar"),
    ],
)
def test_refusals(changes: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_corpus(DataConfig(**changes))  # type: ignore[arg-type]
