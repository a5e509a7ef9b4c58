from __future__ import annotations

import pytest

from fullbore.ir.codec import parse_schedule
from fullbore.ir.validate import validate
from tests.golden.regenerate import SCHEDULES, schedule_texts

TEXTS = schedule_texts()


def test_there_is_a_golden_for_every_schedule_and_size_and_no_other() -> None:
    assert sorted(path.name for path in SCHEDULES.glob("*.txt")) == sorted(TEXTS)


@pytest.mark.parametrize("name", TEXTS)
def test_the_text_of_a_schedule_is_its_golden(name: str) -> None:
    golden = (SCHEDULES / name).read_text(encoding="utf-8")
    assert TEXTS[name] == golden, "if this change is meant, run: python -m tests.golden.regenerate"
    validate(parse_schedule(golden))
