"""Notice: a line on what a command is at, while it has nothing to answer yet.

Starting processes, measuring layers and running a reference take from seconds to minutes. Before the first step no bar
is open (`fullbore.train.progress`), so a line is a line on a terminal as in a batch system's log. It goes to stderr;
stdout belongs to the answer.
"""

from __future__ import annotations

import sys

__all__ = ["notice"]


def notice(text: str) -> None:
    """Written at once, even where stderr is a pipe. It fails no command (`fullbore.standard_streams`)."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
