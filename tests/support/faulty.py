"""A model with a fault in it, for `model.factory`. The fault is chosen by the environment.

FULLBORE_TEST_FAULT = KIND:LAYER:CALL   KIND is raise, kill, stop, hang or exit; CALL counts that layer's forwards.
"""

from __future__ import annotations

import os
import signal
import time

import torch
from torch import Tensor, nn

VOCABULARY = 256


class Faulty(nn.Module):
    """Passes its input on, until its call comes."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.calls = 0

    def forward(self, value: Tensor) -> Tensor:
        kind, layer, call = os.environ.get("FULLBORE_TEST_FAULT", "none:-1:0").split(":")
        if int(layer) == self.layer and self.training and torch.is_grad_enabled():
            self.calls += 1
            if self.calls == int(call):
                _fail(kind)
        return value


def model() -> nn.Sequential:
    """embed, two blocks with a possible fault, head: four layers, two stages of two."""
    with torch.device("meta"):
        return nn.Sequential(
            nn.Embedding(VOCABULARY, 16),
            nn.Sequential(nn.Linear(16, 16), Faulty(1), nn.Tanh()),
            nn.Sequential(nn.Linear(16, 16), Faulty(2), nn.Tanh()),
            nn.Linear(16, VOCABULARY),
        )


def _fail(kind: str) -> None:
    match kind:
        case "raise":
            raise ValueError("this layer does not like the number 13")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "exit":
            os._exit(7)
        case "hang":
            time.sleep(3600)


def with_weights() -> nn.Sequential:
    """The same without faults, on a real device: its weights are the user's own and are kept."""
    return nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, VOCABULARY))


def batch_normed() -> nn.Sequential:
    """A BatchNorm takes the bias before it away: that bias's gradient is zero but for rounding."""
    return nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Flatten(0, 1), nn.Linear(16, 16), nn.BatchNorm1d(16), Rows())


class Rows(nn.Module):
    """Back to [sample, position, vocabulary]."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, value: Tensor) -> Tensor:
        print("user code may print")
        return self.head(value).unflatten(0, (-1, 16))


def dropping() -> nn.Sequential:
    return nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Dropout(0.5), nn.Linear(16, VOCABULARY))
