"""The example that the README shows, under torchrun as it says there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loop.py"


def test_the_example_trains_over_two_processes_and_draws_its_last_step(tmp_path: Path) -> None:
    """Two ranks, four microbatches; the loss starts at log(256) = 5.5 and only rank 0 prints."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE)]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, complaints = process.communicate(timeout=100)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, complaints
    told = re.fullmatch(r"loss (\d\.\d\d) after 20 steps", output.splitlines()[0])
    assert told is not None, output
    assert 1.0 < float(told[1]) < 5.0
    rows = re.findall(r"^r(\d) .*F0.*B3", output, re.MULTILINE)
    assert rows == ["0", "1"], output
