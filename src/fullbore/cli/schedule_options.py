"""``--option key=value``: what a schedule takes beside its sizes, as the command line writes it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fullbore.errors import ConfigError

__all__ = ["parse_options"]


def parse_options(options: Sequence[str]) -> dict[str, int]:
    """``--option key=value``, as often as it was given; whether the schedule has them, its entry says.

    Raises:
        ConfigError: not key=value, or the value is no whole number.
    """
    found = {}
    for option in options:
        key, equals, value = (part.strip() for part in option.partition("="))
        if not equals or re.fullmatch(r"-?[0-9]{1,9}", value) is None:
            raise ConfigError(f"an option is written key=value with a whole number (given --option {option!r})")
        if key in found:
            raise ConfigError(f"each option is given once (--option {option!r} repeats {key})")
        found[key] = int(value)
    return found
