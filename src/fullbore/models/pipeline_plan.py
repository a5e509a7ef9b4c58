"""Reads the pipeline plan of a Hugging Face causal language model, or refuses the model by name.

transformers says for about half of its causal language models which modules follow each other (the
configuration's ``base_model_pp_plan``, the model's ``_pp_plan``). Splitting the others by guessing works for
some and is silently wrong for gpt2, gpt-sw3, gpt_bigcode, biogpt, modernbert-decoder and nanochat: they add
something to their embeddings in the forward, and a later stage would add it again. So no plan, no split; and
a plan is still held against the model (`fullbore.models.probe`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from fullbore.errors import ModelError
from fullbore.models.layer import Layer

__all__ = ["PipelinePlan", "check_config", "read_plan"]

_INSTEAD = "write a module whose pipeline_layers() gives its (name, module) pairs, or train another family"

UNSPLITTABLE: Mapping[str, str] = {
    "deepseek_v4": "its later layers read the token ids again",
    "glm_moe_dsa": "its layers pass tuples to each other",
    "hy_v4": "its layers pass tuples to each other",
    "hrm_text": "it runs its layers in nested loops",
}
"""Families that have a plan and still cannot be cut between two blocks."""


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """Full module names, in the order of the forward."""

    base: str
    """The model without its head, as "model" or "gpt_neox"."""

    embed: tuple[str, ...]
    blocks: str
    num_blocks: int
    head: tuple[str, ...]

    def layers(self, model: nn.Module) -> tuple[Layer, ...]:
        """ "embed", one layer per block, "head"; of the model the plan was read from or a copy of it."""

        def layer(name: str, parts: tuple[str, ...]) -> Layer:
            return Layer(name, tuple((part, model.get_submodule(part)) for part in parts))

        blocks = tuple(f"{self.blocks}.{index}" for index in range(self.num_blocks))
        named = (layer(block.removeprefix(f"{self.base}."), (block,)) for block in blocks)
        return (layer("embed", self.embed), *named, layer("head", self.head))

    def shared(self, model: nn.Module) -> Layer:
        """What every stage has: modules of the base model that the plan does not name, such as rotary embeddings."""
        planned = {*self.embed, self.blocks, *self.head}
        children = ((f"{self.base}.{name}", child) for name, child in model.get_submodule(self.base).named_children())
        return Layer("shared", tuple((name, child) for name, child in children if name not in planned))


def check_config(config: Any) -> None:
    """Refuse by name, from the configuration alone, what cannot be split.

    Raises:
        ModelError: encoder-decoder, not a causal language model, without a plan, known not to be splittable,
            or with a router loss in its objective.
    """
    family = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"fullbore splits decoder-only language models; {family} is an encoder-decoder; {_INSTEAD}")
    if family not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ModelError(f"fullbore splits causal language models; {family} is not one; {_INSTEAD}")
    if not getattr(config, "base_model_pp_plan", None):
        raise ModelError(
            f"{family} has no pipeline plan in transformers, and splitting it by guessing could be silently wrong; "
            f"{_INSTEAD}"
        )
    if family in UNSPLITTABLE:
        raise ModelError(f"{family} has a pipeline plan but cannot be cut: {UNSPLITTABLE[family]}; {_INSTEAD}")
    if getattr(config, "output_router_logits", False):
        raise ModelError(
            f"the router loss of {family} is computed from all layers at the head, where a stage sees only its own "
            "(output_router_logits=True); set output_router_logits to false"
        )


def read_plan(model: Any) -> PipelinePlan:
    """The plan of a built model, checked against its modules.

    Raises:
        ModelError: the plan has an unknown form, or a weight lies outside of what it names.
    """
    family, base = model.config.model_type, model.base_model_prefix
    base_model = model.get_submodule(base)
    names = list(model.config.base_model_pp_plan)
    children = dict(base_model.named_children())
    lists = [name for name in names if isinstance(children.get(name), nn.ModuleList)]
    absent = [name for name in names if name not in children]
    if absent or len(lists) != 1 or names.index(lists[0]) == 0:
        raise ModelError(
            f"a pipeline plan names an embedding, one list of blocks and what follows; that of {family} is "
            f"{', '.join(names)} ({_form(absent, lists)}); {_INSTEAD}"
        )
    tops = [name for name in (model._pp_plan or {}) if not name.startswith(f"{base}.")]
    if len(tops) != 1:
        raise ModelError(
            f"a causal language model has one head after its base model; {type(model).__name__} plans "
            f"{', '.join(tops) or 'none'}; use the ForCausalLM class of {family}"
        )
    at = names.index(lists[0])
    plan = PipelinePlan(
        base=base,
        embed=tuple(f"{base}.{name}" for name in names[:at]),
        blocks=f"{base}.{lists[0]}",
        num_blocks=len(children[lists[0]]),
        head=(*(f"{base}.{name}" for name in names[at + 1 :]), tops[0]),
    )
    if plan.num_blocks < 1:
        raise ModelError(f"a pipeline needs at least one block ({type(model).__name__} has none)")
    inside = tuple(f"{name}." for name in (*plan.embed, plan.blocks, *plan.head))
    for name, _ in model.named_parameters(remove_duplicate=False):
        if not name.startswith(inside):
            raise ModelError(
                f"every weight lies in a module that the pipeline plan names, but {name} of "
                f"{type(model).__name__} does not; {_INSTEAD}"
            )
    return plan


def _form(absent: list[str], lists: list[str]) -> str:
    if absent:
        return f"the model has no {', '.join(absent)}"
    return f"lists of blocks: {', '.join(lists) or 'none'}"
