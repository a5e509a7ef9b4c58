from __future__ import annotations

import pytest
import torch
from torch import nn

from fullbore.ir.recipe import Layout
from fullbore.models.sequential import sequential_model
from fullbore.models.steadiness import LayerRounds
from fullbore.runtime.device import CpuDevice
from fullbore.runtime.mesh import Mesh
from fullbore.session.session import Place, measure


def test_a_run_says_that_the_measurement_was_disturbed_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LayerRounds, "slowdown", property(lambda _: 2.0))
    mesh = Mesh(Layout(pipeline=1), device=CpuDevice(), timeout_s=10)
    model = sequential_model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    measure(model, {"inputs": torch.ones(3, 4)}, place=Place(CpuDevice(), mesh, None), seed=0)
    mesh.close()
    assert capsys.readouterr().err.startswith("warning: the costs of some layers are uncertain")
