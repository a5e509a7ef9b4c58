"""What was given, in a message that is to be read: a value of ten thousand characters is not echoed whole.

A message that echoes a value has it as ``shown(repr(value))``, or as ``shown(text)`` where it stands without quotes.
Paths are everywhere in messages, and click and the system write their own: for those, the command `fullbore` passes all
that it says through `with_words_shown`, and nothing else does.
"""

from __future__ import annotations

import re

__all__ = ["shown", "with_words_shown"]

_MOST = 200
"""Characters of what is echoed whole; more than most paths have."""

_END = 30
"""What is kept of the end, where a path has its file and a word its quotation mark."""

_AROUND = 50
"""What a message may write around a value without a blank: ``(name=...);``. With it, what is shown is not cut again."""

_WORD = re.compile(rf"\S{{{_MOST + _AROUND},}}")


def shown(text: str) -> str:
    """The text, or its beginning and end with ``...`` between them."""
    return text if len(text) <= _MOST else f"{text[: _MOST - _END]}...{text[-_END:]}"


def with_words_shown(message: str) -> str:
    """A message with each of its words as `shown`: what somebody gave may stand in it behind any of its words."""
    return _WORD.sub(lambda word: shown(word[0]), message)
