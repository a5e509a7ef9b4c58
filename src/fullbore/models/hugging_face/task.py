"""What a Hugging Face model is trained for: what it reads from a microbatch, what it gives, and how that is judged."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.models.auto import modeling_auto as auto

from fullbore.errors import ModelError
from fullbore.labels import IGNORED_LABEL
from fullbore.models.auxiliary import auxiliary_loss
from fullbore.models.classification import classification_objective
from fullbore.models.layered import Microbatch, Objective
from fullbore.models.microbatch import tensor_of
from fullbore.models.next_token import next_token_objective
from fullbore.nearest import nearest

__all__ = ["Task", "task_of"]

_TEXT = ("input_ids",)
_TEXT_OPTIONS = ("attention_mask", "position_ids", "token_type_ids")
_PAIR_OPTIONS = ("attention_mask", "decoder_input_ids", "decoder_attention_mask")


@dataclass(frozen=True, slots=True)
class Task:
    """One model class."""

    kind: str
    """For people."""

    name: str
    """Of the class."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    """Keys of a microbatch, by the names of the forward's arguments."""

    arguments: frozenset[str]
    """Of the class's own forward."""

    objective: Objective
    has_decoder: bool
    """Its inputs follow from the labels where they are not given."""

    per_sample: bool
    """One label for a sample, not one for a token."""

    classes: int | None
    """Of a classifier; a language model picks one of its vocabulary."""

    @property
    def tokens(self) -> tuple[str, ...]:
        """The keys without which the forward does not run."""
        return (*self.required, "decoder_input_ids") if self.has_decoder else self.required

    def inputs(self, model: Any, microbatch: Microbatch) -> dict[str, Any]:
        """Keyword arguments of the model's forward, the same on every stage.

        Raises:
            ModelError: an input is missing, has another shape than its tokens, or is one that would be left unread.
        """
        self._refuse_unread(tuple(microbatch))
        given = {key: tensor_of(microbatch, key=key, reader="every stage") for key in self.required}
        for key in self.optional:
            if microbatch.get(key) is None:
                continue
            if key not in self.arguments:
                raise ModelError(f"{self.name} does not read {key!r}; leave it out of the microbatch")
            given[key] = microbatch[key]
        if self.has_decoder and "decoder_input_ids" not in given:
            labels = tensor_of(microbatch, key="labels", reader="a decoder without 'decoder_input_ids'")
            try:
                given["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
            except (AttributeError, ValueError) as error:
                raise ModelError(
                    f"{self.name} cannot make 'decoder_input_ids' of the labels ({error}); put them into each "
                    "microbatch, or set decoder_start_token_id and pad_token_id in the configuration"
                ) from error
        for mask, tokens in (("attention_mask", "input_ids"), ("decoder_attention_mask", "decoder_input_ids")):
            if mask in given and given[mask].dim() == 2 and given[mask].shape != given[tokens].shape:
                raise ModelError(
                    f"{mask!r} has one number for each token of {tokens!r} (given shape {list(given[mask].shape)}, "
                    f"tokens {list(given[tokens].shape)})"
                )
        return {**given, "use_cache": False}

    def _refuse_unread(self, keys: tuple[str, ...]) -> None:
        """Keys that nobody knows are for an objective of the user's own, but for those that were meant as inputs."""
        known = (*self.required, *self.optional, "labels")
        for key in keys:
            if key in known or key == "inputs":  # what a chain of modules reads
                continue
            near = nearest(key, known, alike=0.85)
            if near is not None:
                raise ModelError(f"{self.name} does not read {key!r}; did you mean {near!r}?")
            if key in self.arguments:
                raise ModelError(
                    f"{key!r} of a microbatch is not passed on to {self.name}; of inputs there are {', '.join(known)}"
                )

    def result(self, model: Any, output: Any) -> Tensor:
        """Logits; a router's loss goes beside them to the objective, with the model's own coefficient."""
        asked = getattr(model.config.get_text_config(), "output_router_logits", False)
        routed = output.get("aux_loss") if asked else None
        if routed is not None:
            auxiliary_loss(_router_coefficient(model) * routed)
        logits: Tensor = output.logits
        return logits

    def watched(self, output: Any) -> tuple[Tensor, ...]:
        """Everything of an output that counts."""
        return tuple(output[key] for key in ("logits", "aux_loss") if isinstance(output.get(key), Tensor))

    def sample(self, *, samples: int, length: int, vocabulary: int, padding: int | None, seed: int = 0) -> Microbatch:
        """Random tokens and labels; where ``padding`` is given, the last sample ends in it."""
        generator = torch.Generator().manual_seed(seed)

        def tokens(length: int, *, below: int) -> Tensor:
            return torch.randint(min(4, below - 1), below, (samples, length), generator=generator)

        made: dict[str, Tensor] = {"input_ids": tokens(length, below=vocabulary)}
        target_length = length - 2 if self.has_decoder else length
        if self.per_sample:
            made["labels"] = torch.randint(0, self.classes or vocabulary, (samples,), generator=generator)
        else:
            made["labels"] = tokens(target_length, below=self.classes or vocabulary)
            made["labels"][0, 0] = IGNORED_LABEL
        if self.has_decoder:
            made["decoder_input_ids"] = tokens(target_length, below=vocabulary)
        if padding is not None:
            made["attention_mask"] = torch.ones(samples, length, dtype=torch.long)
            made["attention_mask"][-1, -2:] = 0
            made["input_ids"][-1, -2:] = padding
        return made


def task_of(model: Any) -> Task:
    """By the model's class.

    Raises:
        ModelError: it has another kind of head.
    """
    name, family = type(model).__name__, model.config.model_type
    if _is(name, family, auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) and not model.config.is_encoder_decoder:
        return _task(model, "language model")
    if model.config.is_encoder_decoder and _is(name, family, auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES):
        return _task(model, "encoder-decoder", has_decoder=True)
    classes = int(getattr(model.config, "num_labels", 0))
    if _is(name, family, auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES):
        return _task(model, "token classifier", classes=classes)
    if _is(name, family, auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES):
        problem = model.config.problem_type
        if classes < 2 or problem not in (None, "single_label_classification"):
            raise ModelError(
                f"a sequence classifier picks one of several classes ({name} has num_labels={classes}, "
                f"problem_type={problem}); for another objective write a module with pipeline_layers()"
            )
        return _task(model, "sequence classifier", classes=classes, per_sample=True)
    raise ModelError(
        f"fullbore trains models with a language-model head, or one that classifies sequences or tokens; {name} is "
        f"none of these for {family}; use its ForCausalLM class, or write a module with pipeline_layers()"
    )


def _task(
    model: Any, kind: str, *, classes: int | None = None, has_decoder: bool = False, per_sample: bool = False
) -> Task:
    optional = _PAIR_OPTIONS if has_decoder else _TEXT_OPTIONS
    return Task(
        kind=kind,
        name=type(model).__name__,
        required=_TEXT,
        optional=optional,
        arguments=frozenset(inspect.signature(type(model).forward).parameters),
        objective=classification_objective() if per_sample else next_token_objective(),
        has_decoder=has_decoder,
        per_sample=per_sample,
        classes=classes,
    )


def _is(name: str, family: str, names: Mapping[str, Any]) -> bool:
    found = names.get(family, ())
    return name in ((found,) if isinstance(found, str) else found)


def _router_coefficient(model: Any) -> float:
    for name in ("router_aux_loss_coef", "aux_loss_coef"):
        found = getattr(model, name, None)
        if isinstance(found, int | float) and not isinstance(found, bool):
            return found
    raise ModelError(
        f"{type(model).__name__} has a router loss (output_router_logits=True) of unknown weight; set "
        "output_router_logits to false"
    )
