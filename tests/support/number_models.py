"""Small models whose numbers are looked at: a layer with a loss of its own, one with running statistics, a language
model that may tie."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import fullbore


class Penalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, value: Tensor) -> Tensor:
        hidden = torch.tanh(self.linear(value))
        fullbore.auxiliary_loss(0.01 * hidden.square().mean())
        return hidden


def mlp4() -> nn.Sequential:
    """Layer 1, of stage 0, adds 0.01 * mean(h^2) to the objective."""
    torch.manual_seed(2)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)]
    return nn.Sequential(layers[0], Penalised(), *layers[2:]).double()


class Normed(nn.Module):
    """Has running statistics, into which a forward counts whatever comes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, value: Tensor) -> Tensor:
        return self.norm(self.linear(value))


class Head(nn.Module):
    """The embedding's weight once more."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.weight = embedding.weight

    def forward(self, value: Tensor) -> Tensor:
        return value @ self.weight.T


def language_model(*, tied: bool = True, dtype: torch.dtype = torch.float64, width: int = 32) -> nn.Sequential:
    """Vocabulary 97; four blocks with a residual; the head is the embedding's weight where tied."""
    torch.manual_seed(8)
    embedding = nn.Embedding(97, width)
    nn.init.normal_(embedding.weight, std=0.1)
    blocks = [Block(width) for _ in range(4)]
    head = Head(embedding) if tied else nn.Linear(width, 97, bias=False)
    return nn.Sequential(embedding, *blocks, head).to(dtype)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, value: Tensor) -> Tensor:
        output: Tensor = value + self.down(torch.tanh(self.up(self.norm(value))))
        return output


def next_tokens(rows: int = 8, *, seed: int = 1) -> dict[str, Tensor]:
    drawn = torch.randint(0, 97, (rows, 13), generator=torch.Generator().manual_seed(seed))
    return {"inputs": drawn[:, :-1], "labels": drawn[:, 1:]}
