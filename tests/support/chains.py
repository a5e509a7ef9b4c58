"""Chains whose layers hand on more than one tensor: an encoder that every decoder layer reads, a U-shaped skip, a tree
of everything that may travel. Each has a forward of its own, written without any tree, to be compared with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 8


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


class Encode(nn.Module):
    """The last encoder layer: gives its output and the decoder's start."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = dense()
        self.start = nn.Parameter(torch.full((WIDTH,), 0.5))

    def forward(self, value: Tensor) -> tuple[Tensor, Tensor]:
        encoded = self.dense(value)
        return encoded, self.start.expand_as(encoded)


class Decode(nn.Module):
    """Reads the encoder's output, and hands it on unless it is the last to read it."""

    def __init__(self, *, last: bool) -> None:
        super().__init__()
        self.read = nn.Linear(WIDTH, WIDTH)
        self.dense = dense()
        self.last = last

    def forward(self, value: tuple[Tensor, Tensor]) -> Any:
        encoded, hidden = value
        hidden = self.dense(hidden) + torch.tanh(self.read(encoded))
        return hidden if self.last else (encoded, hidden)


class EncoderDecoder(nn.Module):
    """Two encoder layers and two decoder layers, both of which read what the encoder gives."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList([dense(), Encode()])
        self.decoder = nn.ModuleList([Decode(last=False), Decode(last=True)])

    def pipeline_layers(self) -> list[tuple[str, nn.Module]]:
        names = ("encoder.0", "encoder.1", "decoder.0", "decoder.1")
        return list(zip(names, (*self.encoder, *self.decoder), strict=True))

    def forward(self, value: Tensor) -> Tensor:
        encoded = self.encoder[1].dense(self.encoder[0](value))
        hidden = self.encoder[1].start.expand_as(encoded)
        for layer in self.decoder:
            hidden = layer.dense(hidden) + torch.tanh(layer.read(encoded))
        return hidden


class Down(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = dense()

    def forward(self, value: Tensor) -> dict[str, Tensor]:
        hidden = self.dense(value)
        return {"skip": hidden, "hidden": hidden}


class Across(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = dense()

    def forward(self, value: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**value, "hidden": self.dense(value["hidden"])}


class Up(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = dense()

    def forward(self, value: dict[str, Tensor]) -> Tensor:
        return self.dense(value["hidden"] + value["skip"])


class Ushaped(nn.Module):
    """Layer 3 adds what layer 0 gave."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Down(), Across(), Across(), Up()])

    def pipeline_layers(self) -> list[tuple[str, nn.Module]]:
        return [(f"layers.{index}", layer) for index, layer in enumerate(self.layers)]

    def forward(self, value: Tensor) -> Tensor:
        first = self.layers[0].dense(value)
        hidden = self.layers[2].dense(self.layers[1].dense(first))
        output: Tensor = self.layers[3].dense(hidden + first)
        return output


class Opens(nn.Module):
    """Gives a tree with everything that may travel."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = dense()

    def forward(self, value: Tensor) -> dict[str, Any]:
        hidden = self.dense(value)
        return {
            "hidden": [hidden, None],
            "rows": torch.arange(value.shape[0]),
            "mask": value > 0,
            "plain": (value.shape[0], 2, True, "relu", 0.5),
            "detached": hidden.detach() * 2,
        }


class Middle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = dense()

    def forward(self, tree: dict[str, Any]) -> dict[str, Any]:
        hidden, nothing = tree["hidden"]
        assert nothing is None
        return {**tree, "hidden": [_mixed(self.dense(hidden), tree), hidden]}


class Closes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = dense()

    def forward(self, tree: dict[str, Any]) -> Tensor:
        hidden, earlier = tree["hidden"]
        return _mixed(self.dense(hidden + earlier), tree)


def _mixed(hidden: Tensor, tree: dict[str, Any]) -> Tensor:
    samples, times, negate, name, share = tree["plain"]
    assert (samples, name) == (hidden.shape[0], "relu")
    assert negate is True
    assert (tree["rows"].dtype, tree["mask"].dtype) == (torch.int64, torch.bool)
    scaled = -hidden * times * share * (1 + tree["rows"][:, None])
    return torch.where(tree["mask"], scaled, torch.relu(hidden)) + tree["detached"]


def everything() -> nn.Sequential:
    return nn.Sequential(Opens(), Middle(), Closes())


def overwriting() -> nn.Sequential:
    """A ReLU in place at a possible cut."""
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    )


CHAINS = {
    "encoder and decoder": EncoderDecoder,
    "U-shaped skip": Ushaped,
    "everything": everything,
    "in-place ReLU": overwriting,
}


def made(name: str) -> nn.Module:
    """One of them in float64, the same every time."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(6)
        return CHAINS[name]().double()


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(8, WIDTH, generator=generator).double() for name in ("inputs", "targets")}
