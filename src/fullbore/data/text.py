"""Text: a run of tokens that knows where its documents end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fullbore.errors import ConfigError

__all__ = ["Text"]


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """A run of tokens."""

    tokens: NDArray[Any]
    separator: int | None
    """The id behind every document; None where nothing marks their ends in the tokens."""

    ends: NDArray[np.int64] | None = None
    """Where each document ends, its separator included; None where only the separator tells."""

    def __len__(self) -> int:
        return len(self.tokens)

    def edges(self, *, source: str) -> NDArray[np.int64]:
        """The first token of each document, and the number of tokens at the end.

        Raises:
            ConfigError: nothing says where documents end.
        """
        ends = self.ends
        if ends is None:
            if self.separator is None:
                raise ConfigError(
                    f'data.documents other than "joined" needs to know where documents end, and nothing in {source} '
                    'says so; write "separator" into its sidecar, or use data.documents = "joined"'
                )
            ends = np.flatnonzero(self.tokens == self.separator).astype(np.int64) + 1
        inner = ends[(ends > 0) & (ends < len(self.tokens))]
        return np.concatenate([[0], inner, [len(self.tokens)]]).astype(np.int64)

    def cut(self, at: int) -> tuple[Text, Text]:
        """The tokens before ``at``, and those from there on. A document that goes over it ends there."""
        behind = None if self.ends is None else self.ends - at
        return Text(self.tokens[:at], self.separator, self.ends), Text(self.tokens[at:], self.separator, behind)
