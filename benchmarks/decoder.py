"""A decoder as a plain chain of modules, so that every system runs the very same layers.

An embedding, equal blocks (norm, causal attention, norm, a feed-forward of four times the width) and a head (norm and
projection onto the vocabulary). The loss is the mean over the tokens of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["DecoderShape", "decoder", "token_losses"]


@dataclass(frozen=True, slots=True)
class DecoderShape:
    blocks: int
    width: int
    vocabulary: int
    heads: int = 8


def decoder(shape: DecoderShape, *, seed: int) -> list[nn.Module]:
    """The layers, with the same weights for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        blocks = [Block(shape.width, heads=shape.heads) for _ in range(shape.blocks)]
        head = nn.Sequential(nn.RMSNorm(shape.width), nn.Linear(shape.width, shape.vocabulary, bias=False))
        return [nn.Embedding(shape.vocabulary, shape.width), *blocks, head]


class Block(nn.Module):
    """[samples, tokens, width] -> the same."""

    def __init__(self, width: int, *, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.before_attention, self.before_feed_forward = nn.RMSNorm(width), nn.RMSNorm(width)
        self.entrance, self.exit = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        samples, tokens, width = hidden.shape
        parts = self.entrance(self.before_attention(hidden)).view(samples, tokens, 3, self._heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.exit(mixed.transpose(1, 2).reshape(samples, tokens, width))
        return hidden + self.down(functional.gelu(self.up(self.before_feed_forward(hidden))))


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum over all tokens."""
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
