"""Where models enter: by what they are (`layered`), or as a run file's ``[model]`` section says (`load_model`).

transformers takes seconds to import, so its adapter is imported when a model asks for it and not before.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

from fullbore.config.run import ModelConfig
from fullbore.errors import ModelError
from fullbore.models.layered import LayeredModel, Objective
from fullbore.models.next_token import next_token_objective
from fullbore.models.protocol import HasPipelineLayers, protocol_model
from fullbore.models.sequential import sequential_model
from fullbore.said import said

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from fullbore.models.hugging_face.model import HuggingFaceModel

__all__ = ["DEFAULT_VOCABULARY", "AnyModel", "layered", "load_model"]

AnyModel: TypeAlias = "nn.Module | PreTrainedConfig | LayeredModel"
"""What can be seen as layers, if it is of a kind that says how."""

DEFAULT_VOCABULARY = 256
"""Bytes."""

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def layered(
    model: AnyModel,
    *,
    dtype: torch.dtype = torch.float32,
    objective: Objective | None = None,
    loss_chunk: int | None = None,
) -> LayeredModel:
    """See a model as layers: the adapter for its kind; a `LayeredModel` comes back as it is.

    Args:
        dtype: of the parameters, where a configuration is given; a module keeps its own.
        objective: for a module that brings none.
        loss_chunk: for a Hugging Face model: tokens for which logits exist at a time in the loss.

    Raises:
        ModelError: the kind is not understood. Nothing is guessed: a wrong guess splits silently wrong.
    """
    if _is_hugging_face(model, kind="PreTrainedConfig"):
        return _adapter().from_config(model, dtype=dtype, loss_chunk=loss_chunk)
    if _is_hugging_face(model, kind="PreTrainedModel") or _is_hugging_face(model, kind="PeftModel"):
        return _adapter()(model, loss_chunk=loss_chunk)
    if loss_chunk is not None:
        raise ModelError(
            f"model.loss_chunk is for Hugging Face models; {_kind(model)} has a loss of its own; leave it out"
        )
    if not isinstance(model, nn.Module):
        if isinstance(model, LayeredModel):
            return model
        raise ModelError(f"a model is an nn.Module, a Hugging Face config or a LayeredModel (given {_kind(model)})")
    if isinstance(model, HasPipelineLayers):
        return protocol_model(model, objective=objective)
    if isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward:
        return sequential_model(model, objective=objective)
    raise ModelError(
        f"{_kind(model)} cannot be split without knowing what follows what; make it an nn.Sequential, or give it a "
        "pipeline_layers() method with its (name, module) pairs in the order of its forward"
    )


def load_model(config: ModelConfig, *, vocab_size: int | None = None, seed: int = 0) -> LayeredModel:
    """The model of a run file.

    Args:
        config: section ``[model]``.
        vocab_size: what the tokenizer needs; the built-in model takes it, any other language model must hold it.
        seed: random state under which a factory runs, so that every rank gets the same module.

    Raises:
        ModelError: the section asks for what is not there, or the model cannot be split exactly.
    """
    made = None if config.factory is None else _call(config.factory, seed=seed)
    if made is None and config.factory is not None:
        raise ModelError(f"model.factory = {config.factory!r} returns None; have it return the model that it makes")
    if made is not None and not _is_hugging_face(made, kind="PreTrainedConfig"):
        if config.config:
            raise ModelError(
                f"model.config overrides a Hugging Face configuration, but {config.factory} gives a "
                f"{_kind(made)}; have it return the configuration, or remove model.config"
            )
        _need_dtype(made, dtype=_DTYPES[config.dtype], where=str(config.factory))
        model = layered(made, objective=next_token_objective(), loss_chunk=config.loss_chunk)
    else:
        model = _configured(config, made, vocab_size=vocab_size)
    _need_rows(model, vocab_size=vocab_size)
    return model


def _configured(config: ModelConfig, made: PreTrainedConfig | None, *, vocab_size: int | None) -> LayeredModel:
    """A Hugging Face model from a factory's configuration, a folder's, or the built-in one."""
    from fullbore.models.hugging_face.config import builtin_config, override, read_config

    if made is not None:
        found = made
    elif config.hf is not None:
        found = read_config(Path(config.hf))
    else:
        found = builtin_config(vocab_size=vocab_size or DEFAULT_VOCABULARY)
    pretrained = Path(config.hf) if config.from_pretrained and config.hf is not None else None
    return _adapter().from_config(
        override(found, config.config),
        dtype=_DTYPES[config.dtype],
        pretrained=pretrained,
        loss_chunk=config.loss_chunk,
    )


def _is_hugging_face(model: object, *, kind: str) -> bool:
    """Is it an instance of transformers' or peft's class of that name? Needs no import: what is there has been
    imported."""
    return any(c.__name__ == kind and c.__module__.startswith(("transformers.", "peft.")) for c in type(model).__mro__)


def _adapter() -> type[HuggingFaceModel]:
    from fullbore.models.hugging_face.model import HuggingFaceModel

    return HuggingFaceModel


def _call(factory: str, *, seed: int) -> Any:
    module_name, _, function = factory.partition(":")
    try:
        make = getattr(importlib.import_module(module_name), function)
    except (Exception, SystemExit) as error:
        raise ModelError(f"model.factory = {factory!r} cannot be imported: {said(error)}") from error
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        try:
            return make()
        except (Exception, SystemExit) as error:
            raise ModelError(f"model.factory = {factory!r} failed: {said(error)}") from error


def _need_dtype(model: Any, *, dtype: torch.dtype, where: str) -> None:
    if not isinstance(model, nn.Module):
        return
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != dtype:
            given, wanted = (str(kind).removeprefix("torch.") for kind in (parameter.dtype, dtype))
            raise ModelError(
                f"model.dtype is {wanted}, but {where} gives {name} in {given}; set model.dtype to what it gives"
            )


def _need_rows(model: LayeredModel, *, vocab_size: int | None) -> None:
    """Every token has a row in the embedding, where the model says how many it has."""
    held = model.vocab_size
    if vocab_size is not None and held is not None and held < vocab_size:
        raise ModelError(
            f"the tokenizer has {vocab_size} tokens, but the model's vocabulary is {held}; set "
            f"config = {{ vocab_size = {vocab_size} }} under [model], or use the model's tokenizer"
        )


def _kind(model: object) -> str:
    return f"{type(model).__module__}.{type(model).__qualname__}"
