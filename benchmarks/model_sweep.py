"""Which Hugging Face families can be split, and that the split is exact: the table in docs/models.md.

    python benchmarks/model_sweep.py [--json] [--write] [FAMILY ...]

For every causal language model of the installed transformers that has a pipeline plan, and for the families that
fullbore knows itself: a tiny random copy in float64, cut into two and three stages, against the unsplit model of
transformers with the same weights. Logits, every gradient (nothing but the sum where a weight is tied), and buffers;
with and without padding. ``--write`` puts the table between the marks in docs/models.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from fullbore.errors import ModelError
from fullbore.models.auxiliary import collecting
from fullbore.models.enter import enter
from fullbore.models.hugging_face.families import BLOCKS
from fullbore.models.hugging_face.model import HuggingFaceModel
from fullbore.models.hugging_face.shrink import certain, narrow, shallow
from fullbore.models.layered import BuiltStage, Microbatch, TensorSpec, WholeModel

DOCUMENT = Path(__file__).parents[1] / "docs" / "models.md"
BEGIN, END = "<!-- sweep: begin -->", "<!-- sweep: end -->"
TOLERANCE = 1e-9
CPU = torch.device("cpu")

COMPLETED: Mapping[str, Mapping[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "ministral": {"head_dim": 128},
    "cohere_compass_text": {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
        }
    },
    "hunyuan_v1_dense": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 48},
    "granite": {"embedding_multiplier": 12.0, "logits_scaling": 3.0, "residual_multiplier": 0.5},
}
"""What the default configuration of a family lacks to be built at all, or leaves at a value that would show nothing."""


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    family: str
    variant: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)


VARIANTS = (
    Case("mixtral", "router loss", {"output_router_logits": True}),
    Case("qwen3_moe", "router loss", {"output_router_logits": True}),
    Case("llama", "sequence classifier", {"pad_token_id": 0, "num_labels": 3}),
    Case("llama", "token classifier", {"num_labels": 3, "classifier_dropout": 0.0}),
    Case("gpt2", "sequence classifier", {"pad_token_id": 0, "num_labels": 3}),
)


@dataclass(frozen=True)
class Row:
    family: str
    variant: str
    layers: int | None
    carried: str
    """What crosses where most does, with 3 samples of 9 tokens."""

    result: str
    error: float | None
    """The largest, relative to the largest value of its tensor."""


def planned() -> list[str]:
    """The causal language models of the installed transformers that have a pipeline plan."""
    return sorted(
        family
        for family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        if getattr(CONFIG_MAPPING[family], "base_model_pp_plan", None)
    )


def cases() -> list[Case]:
    """All lines."""
    return [*(Case(family) for family in planned()), *(Case(family) for family in sorted(BLOCKS)), *VARIANTS]


def sweep(case: Case) -> Row:
    """Build, cut and compare."""
    try:
        given = {**COMPLETED.get(case.family, {}), **case.config}
        config = certain(narrow(shallow(CONFIG_MAPPING[case.family](**given), 6)))
    except Exception as error:
        return Row(case.family, case.variant, None, "", f"not built: {_line(error)}", None)
    try:
        model = _adapted(config, case)
    except ModelError as error:
        return Row(case.family, case.variant, None, "", f"refused: {error}", None)
    try:
        try:
            return _judge(case, model)
        except ModelError as error:
            if "nothing sets" not in str(error):
                raise
        return _judge(case, HuggingFaceModel(AutoModelForCausalLM.from_config(config, dtype=torch.float64).train()))
    except Exception as error:
        return Row(case.family, case.variant, len(model.layer_names), "", f"FAILED: {_line(error)}", None)


def _judge(case: Case, model: HuggingFaceModel) -> Row:
    last = len(model.layer_names)
    whole, values = _whole(model)
    batches = [_batch(model, padded=padded) for padded in (False, True)]
    expected = [_reference(model, whole, batch) for batch in batches]
    found = 0.0
    for cuts in ([last // 2], [last // 3, 2 * last // 3], [1, last - 1]):
        bounds = itertools.pairwise([0, *cuts, last])
        stages = [model.build_stage(first, end, seed=1, device=CPU) for first, end in bounds]
        for batch, reference in zip(batches, expected, strict=True):
            found = max(found, _compare(model, stages, batch, values=values, expected=reference))
    crossing = max(
        (model.boundary(layer, batches[0]).tensors for layer in range(1, last)),
        key=lambda tensors: (len(tensors), sum(spec.num_bytes for spec in tensors)),
    )
    plain = len(crossing) == 1 and crossing[0].shape == (3, 9, model.config.get_text_config().hidden_size)
    carried = "hidden states" if plain else _shapes(crossing)
    result = "exact" if found <= TOLERANCE else f"WRONG by {found:.1e}"
    return Row(case.family, case.variant, last, carried, result, found)


def _shapes(tensors: Sequence[TensorSpec]) -> str:
    """Equal ones in a row are counted."""
    groups = itertools.groupby("×".join(map(str, spec.shape)) for spec in tensors)
    return ", ".join(f"{len(equal)} of {shape}" if (equal := list(group))[1:] else shape for shape, group in groups)


def _adapted(config: Any, case: Case) -> HuggingFaceModel:
    if not case.variant.endswith("classifier"):
        return HuggingFaceModel.from_config(config, dtype=torch.float64)
    maker = AutoModelForTokenClassification if case.variant.startswith("token") else AutoModelForSequenceClassification
    with torch.device("meta"):
        model = maker.from_config(config, dtype=torch.float64)
    return HuggingFaceModel(model.train())


def _batch(model: HuggingFaceModel, *, padded: bool) -> Microbatch:
    padding = model.config.get_text_config().to_dict().get("pad_token_id") or 0
    return model.task.sample(
        samples=3, length=9, vocabulary=model.vocab_size, padding=padding if padded else None, seed=3
    )


def _whole(model: HuggingFaceModel) -> tuple[WholeModel, dict[str, Tensor]]:
    """The model of transformers, and values for all its tensors: starting values would hide what is added twice."""
    stage = model.build_stage(0, len(model.layer_names), seed=1, device=CPU)
    values = {name: buffer.clone() for name, buffer in stage.buffers.items()}
    for name, weight in stage.weights.items():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        noise = 0.1 * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        values[name] = weight.detach() + noise
    whole = model.whole()
    _fill((*whole.module.named_parameters(), *whole.module.named_buffers()), values)
    return whole, values


def _fill(tensors: Iterable[tuple[str, Tensor]], values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in tensors:
            if name in values:
                tensor.copy_(values[name])


def _reference(model: HuggingFaceModel, whole: WholeModel, batch: Microbatch) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits and gradients of the unsplit model."""
    whole.module.zero_grad()
    with collecting() as added:
        output = whole.call(batch)
        _loss(model, output, added, batch).backward()
    gradients = {name: p.grad.clone() for name, p in whole.module.named_parameters() if p.grad is not None}
    return output.detach(), gradients


def _compare(
    model: HuggingFaceModel,
    stages: Sequence[BuiltStage],
    batch: Microbatch,
    *,
    values: Mapping[str, Tensor],
    expected: tuple[Tensor, Mapping[str, Tensor]],
) -> float:
    """The largest relative difference between the stages and the whole."""
    for stage in stages:
        _fill((*stage.weights.items(), *stage.buffers.items()), values)
        for weight in stage.weights.values():
            weight.grad = None
    result, gradients = _run(model, stages, batch)
    logits, reference = expected
    assert gradients.keys() == reference.keys(), f"other gradients: {sorted(gradients.keys() ^ reference.keys())}"
    assert all(torch.equal(buffer, values[name]) for stage in stages for name, buffer in stage.buffers.items())
    pairs = [(result, logits), *((gradients[name], gradient) for name, gradient in reference.items())]
    return max(_difference(one, other) for one, other in pairs)


def _run(model: HuggingFaceModel, stages: Sequence[BuiltStage], batch: Microbatch) -> tuple[Tensor, dict[str, Tensor]]:
    value: Any = None
    crossings: list[tuple[Sequence[Tensor], Sequence[Tensor]]] = []
    layer = 0
    with collecting() as added:
        for stage in stages:
            if value is not None:
                specs = model.boundary(layer, batch).tensors
                assert [(s.shape, s.dtype) for s in specs] == [(tuple(t.shape), t.dtype) for t in value]
                leaves = [t.detach().requires_grad_(s.gradient) for t, s in zip(value, specs, strict=True)]
                crossings.append((value, leaves))
                value = tuple(enter(leaf) if leaf.requires_grad else leaf for leaf in leaves)
            value = stage.module(value, batch)
            layer += len(stage.layers)
        _loss(model, value, added, batch).backward()
    for sent, leaves in reversed(crossings):
        pairs = [(t, leaf.grad) for t, leaf in zip(sent, leaves, strict=True) if leaf.grad is not None]
        torch.autograd.backward([t for t, _ in pairs], [gradient for _, gradient in pairs])
    total: dict[str, Tensor] = {}
    for stage in stages:
        for name, weight in stage.weights.items():
            if weight.grad is not None:
                total[name] = total[name] + weight.grad if name in total else weight.grad
    return value.detach(), total


def _loss(model: HuggingFaceModel, output: Tensor, added: Sequence[Tensor], batch: Microbatch) -> Tensor:
    loss = model.objective.loss_sum(output, batch) / model.objective.count(batch)
    return loss + sum(added, start=loss.new_zeros(()))


def _difference(one: Tensor, other: Tensor) -> float:
    assert one.shape == other.shape
    if not one.numel():
        return 0.0
    difference = float((one - other).abs().max() / max(float(other.abs().max()), 1e-300))
    return difference if difference == difference else float("inf")


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def table(rows: Sequence[Row]) -> str:
    """In Markdown."""
    exact = sum(row.result == "exact" for row in rows)
    theirs = sum(row.family in planned() and not row.variant for row in rows)
    lines = [
        f"transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}: "
        f"{exact} of {len(rows)} lines exact; {theirs} families have a pipeline plan in transformers, the others one "
        "line in fullbore.",
        "",
        "| family | layers | crosses | result |",
        "|---|---|---|---|",
    ]
    for row in rows:
        family = f"`{row.family}`" + (f", {row.variant}" if row.variant else "")
        lines.append(f"| {family} | {row.layers or ''} | {row.carried} | {row.result} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Which families can be split exactly.")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--write", action="store_true", help="write the table into docs/models.md")
    parser.add_argument("families", nargs="*", help="these only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    wanted = [case for case in cases() if not options.families or case.family in options.families]
    rows = []
    for case in wanted:
        rows.append(sweep(case))
        if not options.json:
            print(*(value for value in asdict(rows[-1]).values() if value), sep="  ", flush=True)
    if options.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))
    if options.write:
        text = DOCUMENT.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        DOCUMENT.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
