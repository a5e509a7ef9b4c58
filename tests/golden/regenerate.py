"""Rewrite the goldens: ``python -m tests.golden.regenerate``. Review the difference before committing it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from fullbore.errors import ScheduleError
from fullbore.ir.codec import format_schedule
from fullbore.schedules.registry import REGISTRY
from tests.golden import regenerate_cli

SCHEDULES = Path(__file__).parent / "schedules"
SIZES = ((1, 1), (2, 4), (4, 2), (4, 8), (8, 16))
"""Ranks and microbatches: the smallest, the usual, fewer microbatches than ranks, and two that fill the pipe."""


MORE = (
    ("interleaved-1f1b-p4-m8-v4.txt", "interleaved-1f1b", 4, 8, 4, {}),
    ("interleaved-1f1b-p4-m6-group6.txt", "interleaved-1f1b", 4, 6, 2, {"group_size": 6}),
    ("interleaved-1f1b-p4-m9-group5.txt", "interleaved-1f1b", 4, 9, 2, {"group_size": 5}),
    ("interleaved-1f1b-p4-m8-warmup1.txt", "interleaved-1f1b", 4, 8, 2, {"extra_warmup": 1}),
    ("looped-bfs-p4-m8-v4.txt", "looped-bfs", 4, 8, 4, {}),
    ("1f1b-p4-m8-warmup2.txt", "1f1b", 4, 8, 1, {"extra_warmup": 2}),
)
"""File, schedule, ranks, microbatches, chunks, options."""


def schedule_texts() -> dict[str, str]:
    """The text of every registered schedule at every size for which it exists, by file name."""
    texts = {}
    for name, entry in REGISTRY.items():
        for p, m in SIZES:
            with suppress(ScheduleError):
                texts[f"{name}-p{p}-m{m}.txt"] = format_schedule(entry.build(p, num_microbatches=m))
    for file, name, p, m, chunks, options in MORE:
        texts[file] = format_schedule(REGISTRY[name].build(p, num_microbatches=m, num_chunks=chunks, options=options))
    return texts


def main() -> None:
    SCHEDULES.mkdir(exist_ok=True)
    texts = schedule_texts()
    for path in SCHEDULES.glob("*.txt"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (SCHEDULES / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
    regenerate_cli.main()
