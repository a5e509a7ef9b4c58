"""Split: how a Hugging Face model is cut, found on a tiny copy and proven on it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from fullbore.errors import ModelError
from fullbore.models.hugging_face.adapters import Adapters
from fullbore.models.hugging_face.flow import Flow, trace_flow
from fullbore.models.hugging_face.pipeline_plan import PipelinePlan, blocks_of, read_plan
from fullbore.models.hugging_face.probe import check_split, probe_cuts
from fullbore.models.hugging_face.task import Task
from fullbore.models.hugging_face.tiny import eager_experts, tiny_copy
from fullbore.said import said

__all__ = ["Sizes", "Split", "check_chunked", "find_split"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of one microbatch."""

    samples: int
    length: int
    target_length: int
    """Of the decoder; 0 where there is none."""


@dataclass(frozen=True, slots=True)
class Split:
    """What follows from a model's class and configuration."""

    plan: PipelinePlan
    flow: Flow
    task: Task
    hidden_size: int
    """Of the tiny copy."""

    sizes: Sizes
    """Of the microbatch that it ran."""

    routed: bool
    """Whether its result has a router's loss beside logits."""


def find_split(model: Any, task: Task, *, meta: bool, adapters: Adapters | None = None) -> Split:
    """Read the plan, trace the flow, and compare cuts with the whole. Found once for each configuration.

    Args:
        model: on the meta device (``meta``) or with weights; it is left as it is.

    Raises:
        ModelError: the model cannot be split exactly.
    """
    if not meta:
        return _find(model, task, meta=False, adapters=adapters)
    forwards = frozenset(type(module).forward for module in model.modules())
    frozen = tuple(name for name, parameter in model.named_parameters() if not parameter.requires_grad)
    config = f"{model.config.to_json_string(use_diff=False)} {model.config.base_model_pp_plan}"
    return _known(_Request(config, model.dtype, forwards, frozen, model, task))


@dataclass(frozen=True)
class _Request:
    """What a split depends on."""

    config: str
    dtype: torch.dtype
    forwards: frozenset[Any]
    frozen: tuple[str, ...]
    model: Any = field(compare=False)
    task: Task = field(compare=False)


@lru_cache(maxsize=32)
def _known(request: _Request) -> Split:
    return _find(request.model, request.task, meta=True, adapters=None)


def _find(model: Any, task: Task, *, meta: bool, adapters: Adapters | None) -> Split:
    elsewhere = torch.get_default_device().type != "cpu"  # the caller may be building under `torch.device("meta")`
    with torch.device("cpu") if elsewhere else nullcontext():
        return _find_here(model, task, meta=meta, adapters=adapters)


def _find_here(model: Any, task: Task, *, meta: bool, adapters: Adapters | None) -> Split:
    blocks = blocks_of(model)
    tiny = tiny_copy(model, meta=meta, adapters=adapters)
    config = tiny.config.get_text_config()
    padding = getattr(config, "pad_token_id", None)
    plain = task.sample(samples=3, length=7, vocabulary=config.vocab_size, padding=None)
    padded = task.sample(samples=2, length=11, vocabulary=config.vocab_size, padding=padding or 0)

    def call(module: Any) -> Callable[[], Any]:
        def run() -> Any:
            try:
                return task.watched(module(**task.inputs(module, plain)))
            except ModelError:
                raise
            except Exception as error:
                raise ModelError(
                    f"a tiny copy of this {model.config.model_type} does not run, so its split cannot be tried "
                    f"({said(error)})"
                ) from error

        return run

    with torch.random.fork_rng(devices=()):
        training = {name: p.requires_grad for name, p in tiny.named_parameters()}
        tiny.requires_grad_(True)
        plan = read_plan(tiny, blocks, call(tiny), base=model.base_model_prefix)
        for name, parameter in tiny.named_parameters():
            parameter.requires_grad_(training[name])
        flow = trace_flow(tiny, call(tiny), parts=plan.called)
        double = copy.deepcopy(tiny).double()
        eager_experts(double)
        check_split(
            double,
            plan=plan,
            flow=trace_flow(double, call(double), parts=plan.called),
            task=task,
            microbatches=(plain, padded),
            partitions=[probe_cuts(plan)],
        )
    sizes = Sizes(3, 7, plain["labels"].shape[-1] if task.has_decoder else 0)
    routed = bool(config.to_dict().get("output_router_logits"))
    return Split(plan, flow, task, int(config.hidden_size), sizes, routed)


def check_chunked(split: Split, size: int) -> None:
    """Whether the loss of a model can be computed for some tokens at a time.

    Raises:
        ModelError: its projection reads anything but one vector for each token.
    """
    task, flow = split.task, split.flow
    if size < 1:
        raise ModelError(f"model.loss_chunk is a number of tokens, 1 or more (loss_chunk={size})")
    if split.routed:
        raise ModelError(
            f"{task.name} adds a router's loss to its logits, which a part of the tokens does not give; leave "
            "loss_chunk out, or set output_router_logits to false"
        )
    entrance = flow.crossing(frozenset(split.plan.called) - {split.plan.projection})
    length = split.sizes.target_length or split.sizes.length
    shapes = [flow.facts[value].shape for value in entrance]
    if (
        task.classes is not None
        or len(shapes) != 1
        or len(shapes[0]) != 3
        or shapes[0][:2] != (split.sizes.samples, length)
    ):
        raise ModelError(
            f"model.loss_chunk is for models whose logits of a token follow from one vector; {task.name} is none; "
            "leave loss_chunk out"
        )
