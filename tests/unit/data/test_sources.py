"""Each source reads what it documents and refuses what it cannot read, by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fullbore.data.datasets_folder import datasets_documents
from fullbore.data.document import Document
from fullbore.data.jsonl import jsonl_documents
from fullbore.data.text_folder import text_documents
from fullbore.data.token_file import open_token_file, write_token_file
from fullbore.errors import DataError


def test_a_folder_is_read_in_order_of_paths_without_hidden_and_empty_files(tmp_path: Path) -> None:
    for name, text in [("b.txt", "two"), ("a/z.txt", "één"), (".git/x", "hidden"), ("c.txt", "")]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert text_documents(tmp_path) == (Document("a/z.txt", "één".encode()), Document("b.txt", b"two"))
    assert text_documents(tmp_path / "b.txt") == (Document("b.txt", b"two"),)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"abc\0def", r"junk\.bin is not text: it has a NUL byte at offset 3"),
        (b"abc\xff", r"junk\.bin is not UTF-8 text: byte 0xff at offset 3"),
    ],
)
def test_binary_junk_is_refused_by_name(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "junk.bin").write_bytes(content)
    with pytest.raises(DataError, match=message):
        text_documents(tmp_path)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no text: no file that is neither hidden nor empty"):
        text_documents(tmp_path)


def test_jsonl_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "one\\nline"}\n{"id": 7, "text": "tw\\u00f6"}', encoding="utf-8")
    assert [document.text.decode() for document in jsonl_documents(path)] == ["one\nline", "twö"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a"}\n\n{"text": "b"}\n', r"texts\.jsonl, line 2: .*and this one is empty"),
        (b'{"text": "a"}\n{"txt": "b"}\n', r"line 2: .*missing required field `text`"),
        (b'{"text": 3}\n', r"line 1: .*Expected `str`, got `int`"),
        (b'{"text": "a"\n', r"line 1: every line is an object"),
        (b'{"text": "\xff"}\n', r"line 1: every line is an object"),
        (b'{"text": ""}\n', r'line 1: "text" is empty'),
        (b'{"text": "a\\u0000"}\n', r"line 1 is not text: it has a NUL byte"),
        (b"", r"texts\.jsonl is empty; it needs at least one line"),
    ],
)
def test_bad_jsonl_names_the_line(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message):
        jsonl_documents(tmp_path / "texts.jsonl")


@pytest.mark.parametrize(("vocab_size", "item_bytes"), [(65536, 2), (65537, 4)])
def test_token_file_round_trip(vocab_size: int, item_bytes: int, tmp_path: Path) -> None:
    tokens = np.array([0, 5, vocab_size - 1, 3])
    write_token_file(tmp_path / "t.bin", tokens=tokens, vocab_size=vocab_size, separator=5)
    file = open_token_file(tmp_path / "t.bin")
    assert (tmp_path / "t.bin").stat().st_size == 4 * item_bytes
    assert file.tokens.tolist() == tokens.tolist()
    assert (file.vocab_size, file.separator) == (vocab_size, 5)
    assert file.fingerprint == open_token_file(tmp_path / "t.bin", vocab_size=vocab_size).fingerprint


def test_token_files_are_little_endian_and_need_no_sidecar_with_a_vocabulary_size(tmp_path: Path) -> None:
    (tmp_path / "t.bin").write_bytes(b"\x01\x02\x03\x00")
    assert open_token_file(tmp_path / "t.bin", vocab_size=1000).tokens.tolist() == [0x0201, 3]
    assert open_token_file(tmp_path / "t.bin", vocab_size=10**6).tokens.tolist() == [0x30201]


@pytest.mark.parametrize(
    ("content", "sidecar", "vocab_size", "message"),
    [
        (b"\0\0", None, None, r"needs its vocabulary size: write t\.json beside it.*or set data\.vocab_size"),
        (b"\0\0\0", None, 10, r"positive multiple of 2 bytes for uint16 tokens \(it has 3 bytes\)"),
        (b"", None, 10, r"it has 0 bytes"),
        (b"\1\0\xe7\3", None, 10, r"token 999 at position 1, outside its vocabulary of 10 \(ids 0 to 9\)"),
        (b"\0\0", {"dtype": "int8", "vocab_size": 9}, None, r"t\.json must read like .*Invalid enum value 'int8'"),
        (b"\0\0", {"dtype": "uint16", "vocab_size": 9}, 8, r"disagree \(8 and 9\); leave data\.vocab_size out"),
    ],
)
def test_bad_token_files(
    content: bytes, sidecar: dict[str, object] | None, vocab_size: int | None, message: str, tmp_path: Path
) -> None:
    (tmp_path / "t.bin").write_bytes(content)
    if sidecar is not None:
        (tmp_path / "t.json").write_text(json.dumps(sidecar))
    with pytest.raises(DataError, match=message):
        open_token_file(tmp_path / "t.bin", vocab_size=vocab_size)


def test_writing_a_token_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="token 7 at position 1"):
        write_token_file(tmp_path / "t.bin", tokens=np.array([1, 7]), vocab_size=7)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_hugging_face_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["one", "", "two"], "label": [0, 1, 2]})
    rows.save_to_disk(str(tmp_path / "plain"))
    datasets.DatasetDict({"train": rows}).save_to_disk(str(tmp_path / "splits"))
    datasets.DatasetDict({"test": rows.remove_columns("text")}).save_to_disk(str(tmp_path / "no-train"))
    rows.remove_columns("text").save_to_disk(str(tmp_path / "no-text"))
    expected = (Document("row 0", b"one"), Document("row 2", b"two"))
    assert datasets_documents(tmp_path / "plain") == datasets_documents(tmp_path / "splits") == expected
    with pytest.raises(DataError, match=r"needs a split named train \(it has test\)"):
        datasets_documents(tmp_path / "no-train")
    with pytest.raises(DataError, match=r"needs a column named text \(it has label\)"):
        datasets_documents(tmp_path / "no-text")
