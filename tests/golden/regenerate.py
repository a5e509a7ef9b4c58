"""Rewrite the goldens: ``python -m tests.golden.regenerate``. Review the difference before committing it."""

from __future__ import annotations

from pathlib import Path

from fullbore.ir.codec import format_schedule
from fullbore.schedules.registry import REGISTRY
from tests.golden import regenerate_cli

SCHEDULES = Path(__file__).parent / "schedules"
SIZES = ((1, 1), (2, 4), (4, 2), (4, 8), (8, 16))
"""Ranks and microbatches: the smallest, the usual, fewer microbatches than ranks, and two that fill the pipe."""


def schedule_texts() -> dict[str, str]:
    """The text of every registered schedule at every size, by file name."""
    return {
        f"{name}-p{p}-m{m}.txt": format_schedule(entry.build(p, num_microbatches=m))
        for name, entry in REGISTRY.items()
        for p, m in SIZES
    }


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
