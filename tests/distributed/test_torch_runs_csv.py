"""PyTorch's own runtime trains with schedules made here, on two processes, and its gradients are those of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fullbore.ir.torch_lower import with_transfers
from fullbore.ir.torch_write import format_torch_csv
from fullbore.runtime.processes.launch import launch
from fullbore.schedules.registry import REGISTRY
from tests.property.strategies import fits


def test_pytorch_runs_every_registered_schedule_both_ways(tmp_path: Path) -> None:
    cases = []
    for name, entry in REGISTRY.items():
        if not fits(entry, 2, 4, entry.chunks, {}):
            continue
        schedule = entry.build(2, num_microbatches=4)
        if schedule.placement.num_streams != 1 or schedule.num_slices != 1:
            continue  # PyTorch's stages run in one direction, on whole sequences
        for form, text in (
            ("compute_only", format_torch_csv(schedule)),
            ("compute_comms", format_torch_csv(with_transfers(schedule))),
        ):
            path = tmp_path / f"{name}-{form}.csv"
            path.write_bytes(text.encode())
            cases.append((str(path), form))
    target = "tests.support.torch_csv_run:largest_gradient_errors"
    for errors in launch(
        target, cases, str(tmp_path / "store"), num_ranks=2, preload=("torch", "torch.distributed.pipelining")
    ):
        assert dict(zip(cases, errors, strict=True)) == {case: pytest.approx(0, abs=1e-6) for case in cases}
