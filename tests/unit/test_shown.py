from __future__ import annotations

import pytest

from fullbore.shown import shown, with_words_shown


def test_a_text_up_to_200_characters_is_echoed_whole() -> None:
    assert shown("a" * 200) == "a" * 200
    text = "".join(map(chr, range(1000, 1201)))
    assert shown(text) == f"{text[:170]}...{text[-30:]}"


@pytest.mark.parametrize("blank", [" ", "\n"])
def test_only_the_words_that_are_long_are_shortened(blank: str) -> None:
    """What was given ends where it ended: with its quotation mark, and the colon behind it."""
    words = blank.join(["cannot", "read"] * 100)
    long = "'" + "n" * 300 + "':"
    assert with_words_shown(f"{words}{blank}{long}{blank}{words}") == f"{words}{blank}{shown(long)}{blank}{words}"
    assert shown(long).endswith("n':")


def test_what_is_shown_already_is_not_cut_again() -> None:
    message = f"refused (pipeline.schedule={shown(repr('n' * 10_000))}); give another"
    assert with_words_shown(message) == message
