"""Imported last by the server that forks the ranks: when it is told to end, it ends at once.

Without this it would first take down torch piece by piece, a second or more of work after the command is over. What it
forks is not meant: workers leave by themselves (`fullbore.runtime.processes.launch`), and what they fork is the user's.
"""

from __future__ import annotations

import atexit
import os

__all__: list[str] = []

_SERVER = os.getpid()


def _leave() -> None:
    if os.getpid() == _SERVER:
        os._exit(0)


atexit.register(_leave)
