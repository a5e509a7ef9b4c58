"""Adapter for Hugging Face models: causal language models, encoder-decoders, and classifiers on either.

The whole model is built on the meta device and costs nothing. Every stage calls the model's own forward with the same
arguments, on a copy in which the modules of other stages are stood in for (`fullbore.models.hugging_face.stand_ins`)
and its own are materialised. What crosses between stages, and whether that is all, is found on a tiny copy before
(`fullbore.models.hugging_face.split`): usually the hidden states; also an encoder's output that all decoder layers
read, a position bias, keys and values that later layers reuse, or a router's logits.

Microbatch keys: ``input_ids``; ``labels``, *already shifted* (labels[t] is the target at position t, -100 does not
count), or one class per sample for a sequence classifier; and ``attention_mask`` and ``position_ids`` where given,
on every stage. An encoder-decoder reads ``decoder_input_ids`` as well, or makes them of the labels as it does itself.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from fullbore.errors import ModelError
from fullbore.models.hugging_face.adapters import Adapters, inside
from fullbore.models.hugging_face.crossing import Crossings
from fullbore.models.hugging_face.cutter import Cut, HuggingFaceStage, cut_out, record, with_tail
from fullbore.models.hugging_face.family_init import FamilyInit
from fullbore.models.hugging_face.pipeline_plan import check_config
from fullbore.models.hugging_face.pretrained import PretrainedFolder
from fullbore.models.hugging_face.split import Split, check_chunked, find_split
from fullbore.models.hugging_face.task import Task, task_of
from fullbore.models.hugging_face.tiny import eager_experts
from fullbore.models.layer import Layer, on_meta
from fullbore.models.layered import Boundary, BuiltStage, Microbatch, Objective, TiedWeight, WholeModel
from fullbore.models.materialize import draw_layer, fill
from fullbore.models.tied import name_weights

__all__ = ["HuggingFaceModel"]


class HuggingFaceModel:
    """A `LayeredModel` with the layers "embed", one per block ("layers.0", ...), and "head" (norm and projection). An
    encoder-decoder has one more between its two lists of blocks: the encoder's norm and the decoder's embedding."""

    def __init__(self, model: Any, *, pretrained: Path | None = None, loss_chunk: int | None = None) -> None:
        """See a model as layers.

        Args:
            model: a `PreTrainedModel`, on the meta device (weights come from (seed, layer name), or from the folder
                ``pretrained``) or on a real one (its weights are kept); or a `PeftModel` around one with weights.
            loss_chunk: tokens for which logits exist at a time in the loss; all where absent.

        Raises:
            ModelError: the model cannot be split exactly; names the family and what to do.
        """
        self._root = model
        self._model = model = inside(model)
        check_config(model.config)
        adapters = Adapters.of(self._root)
        self._meta = on_meta((Layer("model", (("", model),)),), where=type(model).__name__)
        if self._meta and adapters is not None:
            raise ModelError("a model with adapters comes with its weights; this one is on the meta device")
        if pretrained is not None and not self._meta:
            raise ModelError("pretrained weights are for a model on the meta device; this one came with weights")
        self._split: Split = find_split(model, task_of(model), meta=self._meta, adapters=adapters)
        self._plan = self._split.plan
        self._loss_chunk = loss_chunk
        if loss_chunk is not None:
            check_chunked(self._split, loss_chunk)
        self._layers = self._plan.layers(model)
        self._shared = self._plan.shared(model)
        root = self._root
        known = {id(tensor): name for name, tensor in (*root.named_parameters(), *root.named_buffers())}
        self._names = name_weights((*self._layers, self._shared), known=known)
        self._stored = _stored_names(model, full=self._names.full)
        self._dtype = next(parameter.dtype for _, parameter in self._layers[0].parameters())
        self._crossings = Crossings(model, self._split, dtype=self._dtype)
        self._init = FamilyInit(model, self._plan)
        self._folder = None if pretrained is None else self._open(pretrained)

    @classmethod
    def from_config(
        cls,
        config: Any,
        *,
        dtype: torch.dtype = torch.float32,
        pretrained: Path | None = None,
        loss_chunk: int | None = None,
    ) -> HuggingFaceModel:
        """The causal language model of ``config``, or its encoder-decoder, with parameters in ``dtype``.

        Raises:
            ModelError: the family cannot be split exactly, or transformers cannot build the configuration.
        """
        check_config(config)
        maker = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        try:
            with torch.device("meta"):
                model = maker.from_config(copy.deepcopy(config), dtype=dtype)
        except Exception as error:
            raise ModelError(f"transformers cannot build this {config.model_type} configuration: {error}") from error
        if dtype == torch.float64:
            eager_experts(model)
        return cls(model.train(), pretrained=pretrained, loss_chunk=loss_chunk)

    @property
    def description(self) -> str:
        dtype = str(self._dtype).removeprefix("torch.")
        layers = f"{len(self._layers)} layers (embed, {len(self._plan.blocks)} blocks, head)"
        tied = ", tied embeddings" if self.tied else ""
        return f"{self._model.config.model_type}: {layers}, {self.num_parameters:,} parameters, {dtype}{tied}"

    @property
    def num_parameters(self) -> int:
        """Each shared weight once."""
        return sum({id(p): p.numel() for layer in self._layers for _, p in layer.parameters()}.values())

    @property
    def layer_names(self) -> tuple[str, ...]:
        return self._plan.names

    @property
    def vocab_size(self) -> int:
        return int(self._model.config.get_text_config().vocab_size)

    @property
    def tied(self) -> tuple[TiedWeight, ...]:
        return self._names.tied

    @property
    def objective(self) -> Objective:
        return self._split.task.objective

    @property
    def task(self) -> Task:
        """What it is trained for."""
        return self._split.task

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self._model.config

    def build_stage(self, first_layer: int, end_layer: int, *, seed: int, device: torch.device) -> BuiltStage:
        assert 0 <= first_layer < end_layer <= len(self._layers), (first_layer, end_layer)
        own = range(first_layer, end_layer)
        memo: dict[int, object] = {}
        if not self._meta:
            memo |= {id(module): module for index in own for _, module in self._layers[index].parts}
        plan, flow, task = self._plan, self._split.flow, self._split.task
        cut = Cut.of_layers(plan, flow, first=first_layer, end=end_layer)
        piece = cut_out(self._model, cut, plan=plan, flow=flow, memo=memo)
        every, shared = plan.layers(piece.model), plan.shared(piece.model)
        layers = every[first_layer:end_layer]
        if self._meta:
            fill((*layers, shared), self._values(own, seed=seed), names=self._names, device=device)
        piece.model.to(device)
        if self._loss_chunk is not None and end_layer == len(self._layers):
            piece, tail = with_tail(piece, self._model, plan=plan, flow=flow, task=task)
            stage = HuggingFaceStage(piece, task=task, tail=tail, chunk=self._loss_chunk)
        else:
            stage = HuggingFaceStage(piece, task=task)
        record(piece, flow=flow)
        blocks = self._plan.blocks
        return BuiltStage(
            module=stage,
            weights={self._names.full[key]: parameter for layer in layers for key, parameter in layer.parameters()},
            buffers={self._names.full[key]: buffer for layer in (*layers, shared) for key, buffer in layer.buffers()},
            layers=tuple(layer.name for layer in layers),
            layer_modules={layer.name: layer.parts[0][1] for layer in layers if _is_one_call(layer, blocks)},
            parts={
                layer.name: tuple(module for _, module in layer.parts)
                for index, layer in enumerate(every[:end_layer])
                if index >= first_layer or layer.name not in blocks
            },
        )

    def whole(self) -> WholeModel:
        """As transformers builds it on the CPU, or a copy of the model that came with weights."""
        if self._meta:
            with torch.random.fork_rng(devices=()), torch.device("cpu"):
                model: Any = type(self._model)._from_config(copy.deepcopy(self.config), dtype=self._dtype)
            model.train(self._model.training)
            for own, parameter in zip(model.parameters(), self._model.parameters(), strict=True):
                own.requires_grad_(parameter.requires_grad)
        else:
            model = copy.deepcopy(self._root).to("cpu")
        task, inner = self._split.task, inside(model)

        def call(microbatch: Microbatch) -> Tensor:
            return task.result(inner, model(**task.inputs(inner, microbatch)))

        parts = {layer.name: tuple(module for _, module in layer.parts) for layer in self._plan.layers(inner)}
        return WholeModel(model, call, parts)

    def boundary(self, layer: int, microbatch: Microbatch) -> Boundary:
        assert 0 < layer < len(self._layers), layer
        return self._crossings.boundary(layer, microbatch)

    def _values(self, own: Sequence[int], *, seed: int) -> Mapping[str, Tensor]:
        """Values by full name of the layers ``own`` and the shared modules, a tied weight's from its owner."""
        indices = self._names.owners(self._layers[index] for index in own) | set(own)
        values = self._layer_values(self._shared, index=None, seed=seed)
        for index in sorted(indices):
            values |= self._layer_values(self._layers[index], index=index, seed=seed)
        return values

    def _layer_values(self, layer: Layer, *, index: int | None, seed: int) -> dict[str, Tensor]:
        """Values by full name of what the layer owns: from the checkpoint, and drawn where that has none."""
        full = self._names.full
        keys = self._names.owned(layer, index=index)
        stored = set() if self._folder is None else {key for key in keys if full[key] in self._stored}
        values: dict[str, Tensor] = {}
        if len(stored) < len(keys):
            drawn = draw_layer(layer, keys=set(keys) - stored, seed=seed, initialize_layer=self._init)
            values |= {full[key]: value for key, value in drawn.items()}
        if self._folder is not None:
            tensors = {key: tensor for key, tensor in (*layer.parameters(), *layer.buffers()) if key in stored}
            for key, tensor in tensors.items():
                values[full[key]] = self._folder.load(self._stored[full[key]], shape=tuple(tensor.shape))
        return values

    def _open(self, folder: Path) -> PretrainedFolder:
        found = PretrainedFolder.of(folder)
        ignored = {*(self._model._keys_to_ignore_on_load_unexpected or ()), r"rotary_emb\.inv_freq"}
        found.check(self._stored, ignored=ignored)
        return found


def _is_one_call(layer: Layer, blocks: frozenset[str]) -> bool:
    """Is the layer's forward the call of one module? Not the head's: the loss's logits are made around it."""
    return len(layer.parts) == 1 and (layer.name in blocks or layer.name == "embed")


def _stored_names(model: Any, *, full: Mapping[str, str]) -> dict[str, list[str]]:
    """Full name -> the names a checkpoint may hold it under: of parameters and persistent buffers."""
    aliases: dict[str, list[str]] = {}
    for key in model.state_dict(keep_vars=True):
        aliases.setdefault(full.get(key, key), []).append(key)
    return aliases
