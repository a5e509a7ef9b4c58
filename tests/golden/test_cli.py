from __future__ import annotations

import pytest

from tests.golden.regenerate_cli import FOLDER, outputs

OUTPUTS = outputs()


def test_there_is_a_golden_for_every_output_and_no_other() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(OUTPUTS)


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_is_its_golden(name: str) -> None:
    golden = (FOLDER / name).read_text(encoding="utf-8")
    assert OUTPUTS[name] == golden, "if this change is meant, run: python -m tests.golden.regenerate_cli"
