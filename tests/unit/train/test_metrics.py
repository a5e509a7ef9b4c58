"""metrics.jsonl: a line a step, at once, and valid JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fullbore.train.metrics import Logger, MetricsLog


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_every_line_is_on_disk_before_the_log_is_closed(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "run", tensorboard=False) as log:
        logger: Logger = log
        logger.log({"loss": 2.5}, step=0)
        assert lines(tmp_path / "run") == [{"step": 0, "loss": 2.5}]
        logger.log({"loss": math.nan, "tokens_per_s": 10.0}, step=1)
        assert lines(tmp_path / "run")[1] == {"step": 1, "loss": None, "tokens_per_s": 10.0}
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["metrics.jsonl"]


def test_tensorboard_has_the_same_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with MetricsLog(tmp_path) as log:
        log.log({"loss": 2.5, "tokens_per_s": 4.0}, step=0)
        log.log({"loss": 1.5}, step=1)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(0, 2.5), (1, 1.5)]
    assert events.Tags()["scalars"] == ["loss", "tokens_per_s"]
