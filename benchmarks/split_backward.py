"""What it costs to split a backward: I + W against the whole one, on one thread, small layers included.

    python benchmarks/split_backward.py [--json] [--rounds N] [--cases NAME ...]

One stage in the middle of a model, run by the pipeline's engine. In every round both forms run one microbatch in an
order drawn anew, and each ratio is taken within the round; times are this thread's processor time, so that what else
the machine does counts less. The median of the ratios, its quartiles in the JSON.

- ``I + W``: over the whole backward. ``F``: the forward that prepares for it, over the plain one.
- ``I``: the part of I + W that is I, which is how long the stage before waits.
- ``held``: bytes kept for W. ``forwards``: how often a layer's own forward ran for one microbatch.
- ``recompute``: every layer keeps its input alone.

Exit code 1 if I + W takes more than 5 % longer than the whole backward anywhere.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from allocator import keep_memory
from measure import Spread, answer
from torch import Tensor, nn
from transformers import GPT2Config, LlamaConfig

from fullbore.ids import MicrobatchIndex
from fullbore.models.hugging_face.model import HuggingFaceModel
from fullbore.models.layered import LayeredModel, Microbatch
from fullbore.models.recompute import apply_recompute
from fullbore.models.sequential import sequential_model
from fullbore.models.split_backward.deferral import Deferral
from fullbore.models.split_backward.weight_registry import apply_weight_splits
from fullbore.runtime.eager import EagerEngine

CPU = torch.device("cpu")
FIRST = MicrobatchIndex(0)
TOLERATED = 1.05


@dataclass(frozen=True, slots=True)
class Case:
    model: Callable[[], LayeredModel]
    batch: Callable[[], Microbatch]
    layers: tuple[int, int]
    """The stage: first layer and end."""


def llama(width: int, *, blocks: int = 2) -> LayeredModel:
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=width,
        intermediate_size=width * 3,
        num_hidden_layers=blocks + 1,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return HuggingFaceModel.from_config(config)


def gpt2(width: int) -> LayeredModel:
    config = GPT2Config(
        vocab_size=64,
        n_embd=width,
        n_layer=3,
        n_head=4,
        bos_token_id=1,
        eos_token_id=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return HuggingFaceModel.from_config(config)


def linears(width: int, *, bias: bool) -> LayeredModel:
    with torch.device("meta"):
        layers = [nn.Sequential(nn.Linear(width, width, bias=bias), nn.Tanh()) for _ in range(10)]
        return sequential_model(nn.Sequential(*layers))


def tokens(samples: int, length: int) -> Microbatch:
    return {"input_ids": torch.ones(samples, length, dtype=torch.long), "labels": torch.ones(samples, length).long()}


def rows(samples: int, length: int, width: int) -> Microbatch:
    return {"inputs": torch.ones(samples, length, width), "targets": torch.ones(samples, length, width)}


CASES = {
    "8 linear layers, 32 wide, 16 rows": Case(partial(linears, 32, bias=False), partial(rows, 2, 8, 32), (1, 9)),
    "8 linear layers with bias, 32 wide": Case(partial(linears, 32, bias=True), partial(rows, 2, 8, 32), (1, 9)),
    "2 Llama blocks, 32 wide, 16 tokens": Case(partial(llama, 32), partial(tokens, 2, 8), (1, 3)),
    "2 Llama blocks, 128 wide, 128 tokens": Case(partial(llama, 128), partial(tokens, 2, 64), (1, 3)),
    "2 Llama blocks, 384 wide, 192 tokens": Case(partial(llama, 384), partial(tokens, 2, 96), (1, 3)),
    "2 GPT-2 blocks, 32 wide, 16 tokens": Case(partial(gpt2, 32), partial(tokens, 2, 8), (1, 3)),
    "2 GPT-2 blocks, 256 wide, 128 tokens": Case(partial(gpt2, 256), partial(tokens, 2, 64), (1, 3)),
}


@dataclass(slots=True)
class Times:
    """Of one microbatch, in nanoseconds."""

    forward: int
    first: int
    """The whole backward, or I."""

    second: int = 0
    """W."""

    @property
    def backward(self) -> int:
        return self.first + self.second


class Stage:
    """A case's stage, with its backward whole or split."""

    def __init__(self, case: Case, *, split: bool, recompute: bool) -> None:
        model = case.model()
        first, end = case.layers
        built = model.build_stage(first, end, seed=0, device=CPU)
        self.split = split
        self.forwards = 0
        deferral = Deferral() if split else None
        if deferral is not None:
            apply_weight_splits(built.module, deferral)
        counted = next(iter(built.layer_modules.values()))
        inner = counted.forward

        def counting(*args: Any, **kwargs: Any) -> Any:
            self.forwards += 1
            return inner(*args, **kwargs)

        counted.forward = counting
        if recompute:
            apply_recompute(built, built.layers, around=lambda _: nullcontext())
        edges = [partial(model.boundary, first), partial(model.boundary, end)]
        self.engine = EagerEngine(built.module, entrance=edges[0], exit=edges[1], objective=None, deferral=deferral)
        self.batch = case.batch()
        self.weights = built.weights
        generator = torch.Generator().manual_seed(3)
        (enters,), (leaves,) = (edge(self.batch).tensors for edge in edges)
        self.carried = torch.randn(enters.shape, generator=generator)
        self.gradient = torch.randn(leaves.shape, generator=generator)
        self.held = 0

    def run(self) -> Times:
        engine, now = self.engine, time.thread_time_ns
        engine.begin(1)
        self.forwards = 0
        start = now()
        engine.forward(FIRST, self.batch, (self.carried,))
        forward = now()
        if not self.split:
            engine.backward(FIRST, (self.gradient,))
            return Times(forward - start, now() - forward)
        engine.backward_input(FIRST, (self.gradient,))
        between = now()
        self.held = engine.held_bytes
        resumed = now()
        engine.backward_weight(FIRST)
        return Times(forward - start, between - forward, now() - resumed)

    def gradients(self) -> list[Tensor | None]:
        return [weight.grad for weight in self.weights.values()]


def compare(case: Case, *, recompute: bool, rounds: int) -> dict[str, Any]:
    stages = {split: Stage(case, split=split, recompute=recompute) for split in (False, True)}
    for stage in stages.values():
        stage.run()
    for one, other in zip(stages[False].gradients(), stages[True].gradients(), strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other), "both have the same bits"
    order = random.Random(0)
    found: dict[bool, list[Times]] = {False: [], True: []}
    for _ in range(rounds):
        for split in order.sample((False, True), 2):
            found[split].append(stages[split].run())
    whole, split = found[False], found[True]
    both = Spread.of_ratios([t.backward for t in split], [t.backward for t in whole])
    forward = Spread.of_ratios([t.forward for t in split], [t.forward for t in whole])
    step = Spread.of_ratios([t.forward + t.backward for t in split], [t.forward + t.backward for t in whole])
    share = Spread.of_ratios([t.first for t in split], [t.backward for t in split])
    return {
        "B_ms": round(Spread.of([t.backward / 1e6 for t in whole]).median, 3),
        "I + W": round(both.median, 3),
        "quartiles": [round(both.lower, 3), round(both.upper, 3)],
        "F": round(forward.median, 3),
        "F + I + W": round(step.median, 3),
        "I": round(share.median, 2),
        "held": f"{stages[True].held:,}",
        "forwards": stages[True].forwards,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="A backward in two halves against a whole one.")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    rows = [
        {"stage": name, "recompute": recompute, **compare(CASES[name], recompute=recompute, rounds=options.rounds)}
        for name in options.cases
        for recompute in (False, True)
    ]
    answer(rows, title="ratios to the plain forward and the whole backward", as_json=options.json)
    if any(row["I + W"] > TOLERATED for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
