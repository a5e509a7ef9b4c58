"""Files that are not there, are folders, or cannot be read: said in one sentence, whatever the system calls it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fullbore.config.run import DataConfig
from fullbore.data.corpus import open_corpus
from fullbore.data.files import need_files
from fullbore.errors import DataError


@pytest.mark.parametrize("suffix", [".bin", ".jsonl"])
def test_a_folder_is_no_file(suffix: str, tmp_path: Path) -> None:
    folder = tmp_path / f"text{suffix}"
    folder.mkdir()
    with pytest.raises(DataError, match=f"is a folder, and a {suffix} is a file; rename the folder"):
        need_files(DataConfig(source=str(folder)))


def test_the_built_in_text_and_tokenizer_need_no_file() -> None:
    need_files(DataConfig())


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="a file that exists and cannot be read, for root too")
def test_what_the_system_says_stands_behind_the_source() -> None:
    with pytest.raises(DataError, match=r"data.source /proc/self/mem cannot be read: \[Errno 5\]"):
        open_corpus(DataConfig(source="/proc/self/mem"))
