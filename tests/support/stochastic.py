"""Models with random numbers in their forward, for `model.factory`: such that keys reach, and such that none does."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 256
WIDTH = 16


class Functional(nn.Module):
    """Dropout as a function call, which no module tells of."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        return value + functional.dropout(self.linear(value), 0.3, training=self.training)


def functional_dropout() -> nn.Sequential:
    layers = (nn.Embedding(VOCABULARY, WIDTH), Functional(), nn.Dropout(0.1), nn.Linear(WIDTH, VOCABULARY))
    return nn.Sequential(*layers).double()


class OwnGenerator(nn.Module):
    """Noise from a generator that belongs to the module."""

    def __init__(self, *, always: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.generator = torch.Generator().manual_seed(0)
        self.always = always

    def __deepcopy__(self, memo: dict[int, object]) -> OwnGenerator:
        made = OwnGenerator(always=self.always)
        made.linear.load_state_dict(self.linear.state_dict())
        return made.train(self.training)

    def forward(self, value: Tensor) -> Tensor:
        if self.training or self.always:
            noise = torch.rand(value.shape, generator=self.generator).to(value.device, value.dtype)
            value = value * (0.5 + noise)
        output: Tensor = self.linear(value)
        return output


def own_generator() -> nn.Sequential:
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), OwnGenerator(always=False), nn.Linear(WIDTH, VOCABULARY))


def always_random() -> nn.Sequential:
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), OwnGenerator(always=True), nn.Linear(WIDTH, VOCABULARY))


class BetweenLayers(nn.Module):
    """Its own forward drops between two layers, where no layer's key is in force; and the layers alone do not."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.block = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def pipeline_layers(self) -> list[tuple[str, nn.Module]]:
        return [("embed", self.embed), ("block", self.block), ("head", self.head)]

    def forward(self, value: Tensor) -> Tensor:
        hidden = functional.dropout(self.embed(value), 0.5, training=self.training)
        output: Tensor = self.head(self.block(hidden))
        return output


def between_layers() -> BetweenLayers:
    return BetweenLayers()
