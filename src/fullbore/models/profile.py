"""Measures what each layer takes: the LayerCosts that partitioning, planning and simulation start from.

Each layer is built alone, as a stage of one, and fed numbers of its true boundary shape. Rounds go over all
layers in turn, so that a machine that slows down or warms up does so for all of them; the median of the rounds
counts, pooled over layers that are alike: of equal sizes, and running the same operations or taking about as
long. Where the rounds were disturbed, that is told (`fullbore.models.steadiness`). The last layer includes
the loss. Whatever came with weights is measured on a copy: weights, buffers, training flags and the random state
are left as they were.

    backward_input   the gradient of the layer's input alone
    backward_weight  the whole backward less that; all of it for the first layer, whose input needs no gradient
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fullbore.costs.layer import LayerCost
from fullbore.models.activations import kept_bytes
from fullbore.models.compiled import apply_compile
from fullbore.models.enter import enter
from fullbore.models.layered import LayeredModel, Microbatch, Objective, Parcel, TensorSpec
from fullbore.models.load import AnyModel, layered
from fullbore.models.operations import Operations
from fullbore.models.steadiness import LayerRounds, warn_of_slow_rounds

__all__ = ["profile"]


def profile(
    model: AnyModel,
    microbatch: Microbatch,
    *,
    device: torch.device,
    seed: int = 0,
    repeats: int = 5,
    budget_s: float = 3.0,
    objective: Objective | None = None,
    held_bytes: int = 2**30,
    compile: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> tuple[LayerCost, ...]:
    """The cost of each layer for one microbatch.

    Args:
        model: a module, a Hugging Face configuration, or what was made of one: whatever a `Pipeline` takes.
        microbatch: as it will be in training; moved to ``device`` here.
        repeats: measured rounds, after one of warm-up.
        budget_s: no further round starts once this has passed; every layer is measured at least once.
        objective: the loss, where the model brings none; without any, the last layer is measured without.
        held_bytes: layers are kept between rounds up to this many bytes of parameters; those beyond it are
            measured in one go and dropped.
        compile: measure layers as `apply_compile` makes them.
        tell: hears a line where disturbed rounds made the costs uncertain.

    Raises:
        ModelError: the model cannot be seen as layers, does not take this microbatch, or cannot be compiled here.
    """
    layers = layered(model)
    here = {key: tensor.to(device) for key, tensor in microbatch.items()}
    objective = objective if objective is not None else layers.objective
    cuda = [device.index or 0] if device.type == "cuda" else []
    start = time.perf_counter()
    benches: list[_Bench] = []
    held: list[_Bench] = []
    with torch.random.fork_rng(devices=cuda), torch.enable_grad():
        for layer in range(len(layers.layer_names)):
            bench = _Bench(layers, here, layer=layer, seed=seed, device=device, objective=objective, compile=compile)
            bench.measure(warmup=True)
            benches.append(bench)
            if sum(entry.parameter_bytes for entry in (*held, bench)) <= held_bytes:
                held.append(bench)
                continue
            for _ in range(repeats):
                bench.measure()
                if time.perf_counter() - start > budget_s:
                    break
            bench.drop()
        for _ in range(repeats):
            for bench in held:
                bench.measure()
            if time.perf_counter() - start > budget_s:
                break
    alike = [[other for other in benches if bench.is_like(other)] for bench in benches]
    warning = warn_of_slow_rounds([bench.rounds(alike=same) for bench, same in zip(benches, alike, strict=True)])
    if warning is not None:
        tell(warning)
    return tuple(bench.cost(alike=same) for bench, same in zip(benches, alike, strict=True))


@dataclass(frozen=True, slots=True)
class _Times:
    forward_ns: list[int] = field(default_factory=list)
    input_ns: list[int] = field(default_factory=list)
    weight_ns: list[int] = field(default_factory=list)
    round_ns: list[int] = field(default_factory=list)
    """From its start to its end."""

    cpu_ns: list[int] = field(default_factory=list)
    """In which the CPU ran this thread; nothing where another device computes."""


class _Bench:
    """One layer, ready to be run again and again."""

    def __init__(
        self,
        model: LayeredModel,
        microbatch: Microbatch,
        *,
        layer: int,
        seed: int,
        device: torch.device,
        objective: Objective | None,
        compile: bool,
    ) -> None:
        stage = model.build_stage(layer, layer + 1, seed=seed, device=device)
        weights = tuple(stage.weights.values())
        self._name = model.layer_names[layer]
        self._microbatch = microbatch
        self._objective = objective if layer == len(model.layer_names) - 1 else None
        self._is_last = layer == len(model.layer_names) - 1
        module, layers = copy.deepcopy((stage.module, dict(stage.layer_modules)))
        if compile:
            apply_compile(layers, device=device)
        self._module: nn.Module | None = module
        self._device = device
        self._input = None if layer == 0 else _numbers(model, microbatch, layer=layer, device=device, seed=seed)
        self._times = _Times()
        self._operations = None if compile else Operations()  # no mode may be around what is compiled
        self.parameters = sum(weight.numel() for weight in weights)
        self.parameter_bytes = _size(weights)
        self.optimizer_bytes = sum(_adamw_bytes(weight) for weight in weights if weight.requires_grad)
        self.output_bytes = 0
        self.activation_bytes = 0

    def measure(self, *, warmup: bool = False) -> None:
        """One forward and backward; the warm-up also finds the sizes, and its times do not count."""
        assert self._module is not None, f"{self._name} was dropped"
        if warmup:
            with kept_bytes(self._module) as kept, self._operations or nullcontext():
                values = self._forward(self._module, self._carried()[1])
            self.activation_bytes = kept.total(without=values)
            self.output_bytes = 0 if self._is_last else sum(value.numel() * value.element_size() for value in values)
            del values
        leaves, carried = self._carried()
        start, cpu_start = self._now(), time.thread_time_ns()
        values = self._forward(self._module, carried)
        ended = self._now()
        self._backward(values, leaves=leaves, forward_ns=ended - start, counts=not warmup)
        if not warmup:
            self._times.round_ns.append(self._now() - start)
            if self._device.type == "cpu":
                self._times.cpu_ns.append(time.thread_time_ns() - cpu_start)

    def drop(self) -> None:
        """Let go of the layer's weights."""
        self._module = None
        self._input = None

    def is_like(self, other: _Bench) -> bool:
        """Equal sizes, and the same operations or fastest rounds within a quarter of each other: the same block,
        measured twice.

        Not by time alone: on a busy machine there may be one round only, and eight equal blocks then fall apart.
        """
        if self._sizes() != other._sizes():
            return False
        mine, theirs = self._operations, other._operations
        if mine is not None and theirs is not None and mine.ran == theirs.ran:
            return True
        fastest, other_fastest = min(self._times.forward_ns), min(other._times.forward_ns)
        return 4 * max(fastest, other_fastest) <= 5 * min(fastest, other_fastest)

    def _sizes(self) -> tuple[int, ...]:
        return (self.parameters, self.parameter_bytes, self.activation_bytes, self.output_bytes)

    def cost(self, *, alike: Sequence[_Bench]) -> LayerCost:
        """Medians over the measured rounds of all layers that are alike, itself among them.

        On a busy machine one of eight equal blocks can seem four times as slow as the next; as one block measured
        eight times as often they are equal.
        """
        times = [bench._times for bench in alike]
        return LayerCost(
            name=self._name,
            forward_ns=int(statistics.median(ns for each in times for ns in each.forward_ns)),
            backward_input_ns=int(statistics.median(ns for each in times for ns in each.input_ns)),
            backward_weight_ns=int(statistics.median(ns for each in times for ns in each.weight_ns)),
            parameters=self.parameters,
            parameter_bytes=self.parameter_bytes,
            optimizer_bytes=self.optimizer_bytes,
            activation_bytes=self.activation_bytes,
            output_bytes=self.output_bytes,
        )

    def rounds(self, *, alike: Sequence[_Bench]) -> LayerRounds:
        """The same rounds, each as a whole."""
        times = [bench._times for bench in alike]
        return LayerRounds(
            self._name,
            wall_ns=tuple(ns for each in times for ns in each.round_ns),
            cpu_ns=tuple(ns for each in times for ns in each.cpu_ns),
        )

    def _carried(self) -> tuple[list[Tensor], Parcel | None]:
        """Fresh leaves that need gradients, and what the layer takes made of them."""
        if self._input is None:
            return [], None
        leaves = [tensor.clone().requires_grad_(spec.gradient) for spec, tensor in self._input]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        return wanted, tuple(enter(leaf) if leaf.requires_grad else leaf for leaf in leaves)

    def _forward(self, module: nn.Module, carried: Parcel | None) -> Parcel:
        """What the layer gives: a parcel, or the loss of the last layer, or what it ends in where there is no loss."""
        value = module(carried, self._microbatch)
        if self._objective is not None:
            return (self._objective.loss_sum(value, self._microbatch),)
        return tuple(leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))

    def _backward(self, values: Parcel, *, leaves: Sequence[Tensor], forward_ns: int, counts: bool) -> None:
        input_ns = whole_ns = 0
        ends = [value for value in values if value.requires_grad]
        if ends:
            gradients = [torch.ones_like(value) for value in ends]
            if leaves:
                start = self._now()
                torch.autograd.grad(ends, leaves, gradients, retain_graph=True, allow_unused=True)
                input_ns = self._now() - start
            start = self._now()
            torch.autograd.backward(ends, gradients)
            whole_ns = self._now() - start
        if counts:
            self._times.forward_ns.append(forward_ns)
            self._times.input_ns.append(min(input_ns, whole_ns))
            self._times.weight_ns.append(max(whole_ns - input_ns, 0))

    def _now(self) -> int:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter_ns()


def _numbers(
    model: LayeredModel, microbatch: Microbatch, *, layer: int, device: torch.device, seed: int
) -> list[tuple[TensorSpec, Tensor]]:
    generator = torch.Generator().manual_seed(seed + layer)
    made = []
    for spec in model.boundary(layer, microbatch).tensors:
        if spec.dtype.is_floating_point:
            values = torch.randn(spec.shape, generator=generator).to(device=device, dtype=spec.dtype)
        else:
            values = torch.zeros(spec.shape, dtype=spec.dtype, device=device)
        made.append((spec, values))
    return made


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _adamw_bytes(weight: Tensor) -> int:
    """Two moments in float32 (float64 for a float64 weight), and a float32 master for a narrower weight."""
    moment = max(weight.element_size(), 4)
    return weight.numel() * (2 * moment + (4 if weight.element_size() < 4 else 0))
