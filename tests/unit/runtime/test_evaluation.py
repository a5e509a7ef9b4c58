from __future__ import annotations

import torch
from torch import Tensor

from fullbore.ids import StageIndex
from fullbore.ir.action import Message
from fullbore.ir.placement import Placement
from fullbore.ir.program import Lane
from fullbore.ir.recipe import Layout
from fullbore.models.layered import Boundary, Microbatch
from fullbore.models.sequential import sequential_model
from fullbore.runtime.device import CpuDevice
from fullbore.runtime.eager import EvaluationEngine
from fullbore.runtime.evaluation import Evaluation
from fullbore.runtime.mesh import Mesh
from fullbore.runtime.mirrored import BufferWatch
from fullbore.runtime.outputs import OutputTap
from fullbore.runtime.transport.transport import Arrival
from fullbore.schedules.registry import get
from tests.support.ranks import SQUARED_ERROR, chain_batch, chain_model


class Alone:
    """No messages; ``waited_s`` is how long the end of each run may take."""

    def __init__(self) -> None:
        self.waited_s: list[float] = []

    def send(self, lane: Lane, tensor: Tensor) -> None:
        raise AssertionError("one stage sends nothing")

    def receive(self, lane: Lane, buffer: Tensor) -> Arrival:
        raise AssertionError("one stage receives nothing")

    def release(self) -> None: ...

    def drain(self, timeout_s: float) -> None:
        self.waited_s.append(timeout_s)

    def close(self) -> None: ...


def uncut(message: Message, microbatch: Microbatch) -> Boundary:
    raise AssertionError("one stage has no boundary")


def test_every_evaluation_waits_as_long_as_it_is_told() -> None:
    """Also by a program that was made in one that compiles, and is kept."""
    stage = sequential_model(chain_model()).build_stage(0, 2, seed=0, device=torch.device("cpu"))
    transport = Alone()
    mesh = Mesh(Layout(pipeline=1), device=CpuDevice(), timeout_s=1.0)
    evaluation = Evaluation(
        {StageIndex(0): EvaluationEngine(stage.module, objective=SQUARED_ERROR)},
        placement=Placement.linear(1),
        rank=0,
        transport=transport,
        boundary_of=uncut,
        buffers=BufferWatch([stage.module], schedule=get("1f1b").build(1, num_microbatches=1), mesh=mesh),
        tap=OutputTap(SQUARED_ERROR),
        device=CpuDevice(),
        board=None,
    )
    for number, timeout_s in ((2, 20.0), (2, 4.0), (1, 4.0), (2, 6.0)):
        loss_sum = evaluation.run([chain_batch()] * number, step=1, timeout_s=timeout_s)
        assert loss_sum == number * 4 * 270.0
    assert transport.waited_s == [20.0, 4.0, 4.0, 6.0]
