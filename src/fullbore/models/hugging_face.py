"""Adapter for Hugging Face causal language models with a pipeline plan.

The whole model is built on the meta device and costs nothing. A stage is a copy of it in which the modules of
other stages are passed over (`PassThrough`) and its own are materialised. What the base model does once for all
blocks (rotary embeddings, masks, position ids) happens on every stage, from the same inputs. Stages after the
first enter through ``inputs_embeds``; only the last runs the full forward of the CausalLM class, so that logit
scales and soft caps are the model's own.

Microbatch keys: ``input_ids``; ``labels``, *already shifted* (labels[t] is the target at position t, -100 does not
count); and ``attention_mask`` and ``position_ids`` where given, on every stage.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers import initialization as hf_init

from fullbore.errors import ModelError
from fullbore.models.layer import Layer, on_meta
from fullbore.models.layered import (
    Boundary,
    BuiltStage,
    Microbatch,
    Objective,
    Parcel,
    TensorSpec,
    TiedWeight,
    WholeModel,
)
from fullbore.models.materialize import draw_layer, fill
from fullbore.models.microbatch import tensor_of
from fullbore.models.next_token import next_token_objective
from fullbore.models.pass_through import PassThrough
from fullbore.models.pipeline_plan import PipelinePlan, check_config, read_plan
from fullbore.models.pretrained import PretrainedFolder
from fullbore.models.probe import check_pass_through
from fullbore.models.tied import name_weights

__all__ = ["HuggingFaceModel", "HuggingFaceStage"]

_SIDE_INPUTS = ("attention_mask", "position_ids")


class HuggingFaceStage(nn.Module):
    """A copy of the model with foreign modules passed over, called as its place in the pipeline demands."""

    def __init__(self, model: Any, *, base: str, first: bool, last: bool) -> None:
        super().__init__()
        self.model = model
        self.base = base
        self.first = first
        self.last = last

    def forward(self, carried: Parcel | None, microbatch: Microbatch) -> Tensor | Parcel:
        """``[batch, seq, hidden]`` from stage to stage; logits ``[batch, seq, vocabulary]`` from the last."""
        given = _side_inputs(microbatch)
        if self.first:
            given["input_ids"] = tensor_of(microbatch, key="input_ids", reader="the first stage")
        else:
            assert carried is not None, "a stage after the first needs what the one before it gave"
            (given["inputs_embeds"],) = carried
        if self.last:
            logits: Tensor = self.model(**given, use_cache=False).logits
            return logits
        hidden: Tensor = self.model.get_submodule(self.base)(**given, use_cache=False).last_hidden_state
        return (hidden,)


class HuggingFaceModel:
    """A `LayeredModel` with the layers "embed", one per block ("layers.0", ...), and "head" (norm and projection)."""

    def __init__(self, model: Any, *, pretrained: Path | None = None) -> None:
        """``model``: a `PreTrainedModel` for causal language modelling, on the meta device (weights come from
        (seed, layer name), or from the folder ``pretrained``) or on a real one (its weights are kept).

        Raises:
            ModelError: the model cannot be split exactly; names the family and what to do.
        """
        if not isinstance(model, PreTrainedModel):
            raise ModelError(f"a Hugging Face model is a PreTrainedModel (given {type(model).__name__})")
        check_config(model.config)
        self._model = model
        self._plan: PipelinePlan = read_plan(model)
        self._layers = self._plan.layers(model)
        self._shared = self._plan.shared(model)
        self._meta = on_meta((*self._layers, self._shared), where=type(model).__name__)
        if pretrained is not None and not self._meta:
            raise ModelError("pretrained weights are for a model on the meta device; this one came with weights")
        self._names = name_weights((*self._layers, self._shared))
        self._stored = _stored_names(model, full=self._names.full)
        self._dtype = next(parameter.dtype for _, parameter in self._layers[0].parameters())
        self._folder = None if pretrained is None else self._open(pretrained)
        shell = self._copy(range(0), seed=0, device=torch.device("cpu"))
        check_pass_through(shell, plan=self._plan, hidden_size=model.config.hidden_size, dtype=self._dtype)

    @classmethod
    def from_config(
        cls, config: Any, *, dtype: torch.dtype = torch.float32, pretrained: Path | None = None
    ) -> HuggingFaceModel:
        """The causal language model of ``config``, with parameters in ``dtype``.

        Raises:
            ModelError: the family cannot be split exactly, or transformers cannot build the configuration.
        """
        check_config(config)
        try:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=dtype)
        except Exception as error:
            raise ModelError(f"transformers cannot build this {config.model_type} configuration: {error}") from error
        return cls(model.train(), pretrained=pretrained)

    @property
    def description(self) -> str:
        dtype = str(self._dtype).removeprefix("torch.")
        layers = f"{len(self._layers)} layers (embed, {self._plan.num_blocks} blocks, head)"
        tied = ", tied embeddings" if self.tied else ""
        return f"{self._model.config.model_type}: {layers}, {self.num_parameters:,} parameters, {dtype}{tied}"

    @property
    def num_parameters(self) -> int:
        """Each shared weight once."""
        return sum({id(p): p.numel() for layer in self._layers for _, p in layer.parameters()}.values())

    @property
    def layer_names(self) -> tuple[str, ...]:
        return tuple(layer.name for layer in self._layers)

    @property
    def vocab_size(self) -> int:
        return int(self._model.config.vocab_size)

    @property
    def tied(self) -> tuple[TiedWeight, ...]:
        return self._names.tied

    @property
    def objective(self) -> Objective:
        return next_token_objective()

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self._model.config

    def build_stage(self, first_layer: int, end_layer: int, *, seed: int, device: torch.device) -> BuiltStage:
        assert 0 <= first_layer < end_layer <= len(self._layers), (first_layer, end_layer)
        own = range(first_layer, end_layer)
        model = self._copy(own, seed=seed, device=device)
        layers = tuple(self._plan.layers(model)[index] for index in own)
        tensors = (*layers, self._plan.shared(model))
        return BuiltStage(
            module=HuggingFaceStage(
                model, base=self._plan.base, first=first_layer == 0, last=end_layer == len(self._layers)
            ),
            weights={self._names.full[key]: parameter for layer in layers for key, parameter in layer.parameters()},
            buffers={self._names.full[key]: buffer for layer in tensors for key, buffer in layer.buffers()},
            layers=tuple(layer.name for layer in layers),
            layer_modules={
                layer.name: layer.parts[0][1] for layer in layers if len(layer.parts) == 1 and layer.name != "head"
            },
        )

    def whole(self) -> WholeModel:
        """As transformers builds it on the CPU, or a copy of the model that came with weights."""
        if self._meta:
            with torch.random.fork_rng(devices=()), torch.device("cpu"):
                model = type(self._model)._from_config(copy.deepcopy(self.config), dtype=self._dtype)
            model.train(self._model.training)
            for own, parameter in zip(model.parameters(), self._model.parameters(), strict=True):
                own.requires_grad_(parameter.requires_grad)
        else:
            model = copy.deepcopy(self._model).to("cpu")

        def call(microbatch: Microbatch) -> Tensor:
            tokens = tensor_of(microbatch, key="input_ids", reader="the model")
            logits: Tensor = model(input_ids=tokens, **_side_inputs(microbatch), use_cache=False).logits
            return logits

        return WholeModel(model, call)

    def boundary(self, layer: int, microbatch: Microbatch) -> Boundary:
        assert 0 < layer < len(self._layers), layer
        batch, length = tensor_of(microbatch, key="input_ids", reader="every stage").shape
        shape = (batch, length, self._model.config.hidden_size)
        trains = any(p.requires_grad for before in self._layers[:layer] for _, p in before.parameters())
        return Boundary((TensorSpec(shape, self._dtype, gradient=trains),))

    def _copy(self, own: Sequence[int], *, seed: int, device: torch.device) -> Any:
        """The model with the layers ``own`` real and the others passed over."""
        memo: dict[int, object] = {}
        for index, layer in enumerate(self._layers):
            for _, module in layer.parts:
                if index not in own:
                    memo[id(module)] = PassThrough(module)
                elif not self._meta:
                    memo[id(module)] = module
        model = copy.deepcopy(self._model, memo)
        if self._meta:
            layers = self._plan.layers(model)
            kept = (*(layers[index] for index in own), self._plan.shared(model))
            fill(kept, self._values(own, seed=seed), names=self._names, device=device)
        return model.to(device)

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
            drawn = draw_layer(layer, keys=set(keys) - stored, seed=seed, initialize=self._initialize)
            values |= {full[key]: value for key, value in drawn.items()}
        if self._folder is not None:
            tensors = {key: tensor for key, tensor in (*layer.parameters(), *layer.buffers()) if key in stored}
            for key, tensor in tensors.items():
                values[full[key]] = self._folder.load(self._stored[full[key]], shape=tuple(tensor.shape))
        return values

    def _initialize(self, module: nn.Module) -> None:
        """The family's own initialiser for one module, as transformers applies it after building on meta."""
        with hf_init.guard_torch_init_functions():
            self._model._init_weights(module)

    def _open(self, folder: Path) -> PretrainedFolder:
        found = PretrainedFolder.of(folder)
        ignored = {*(self._model._keys_to_ignore_on_load_unexpected or ()), r"rotary_emb\.inv_freq"}
        found.check(self._stored, ignored=ignored)
        return found


def _side_inputs(microbatch: Microbatch) -> dict[str, Tensor]:
    return {key: microbatch[key] for key in _SIDE_INPUTS if microbatch.get(key) is not None}


def _stored_names(model: Any, *, full: Mapping[str, str]) -> dict[str, list[str]]:
    """Full name -> the names a checkpoint may hold it under: of parameters and persistent buffers."""
    aliases: dict[str, list[str]] = {}
    for key in model.state_dict(keep_vars=True):
        aliases.setdefault(full.get(key, key), []).append(key)
    return aliases
