"""Imported first by the server that forks the ranks: Ctrl-C, which goes to the whole group of a terminal, is the
launcher's to answer.

The server would ignore it too, but only once it has imported everything: until then torch's imports would be torn in
the middle, with a traceback beside the launcher's one line. It is started with SIGINT held back
(`fullbore.runtime.processes.launch`), so that there is no moment before this one either.
"""

from __future__ import annotations

import signal

__all__: list[str] = []

signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
