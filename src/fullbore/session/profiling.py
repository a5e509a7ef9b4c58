"""Profiling by itself: one process, one device, no group."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import torch

from fullbore.config.run import RunConfig, batch_sizes
from fullbore.costs.layer import LayerCost
from fullbore.data.corpus import open_corpus
from fullbore.errors import FullboreError, ModelError
from fullbore.models.load import load_model
from fullbore.models.profile import profile
from fullbore.runtime.device import open_device
from fullbore.runtime.processes.blame import blame
from fullbore.session.notice import notice
from fullbore.session.session import share_cores, typical_microbatch

__all__ = ["Measured", "profile_alone"]


@dataclass(frozen=True, slots=True)
class Measured:
    """Layer costs with what they were measured on."""

    layers: tuple[LayerCost, ...]
    about: dict[str, Any]
    """Further keys of the costs file: device, dtype, lengths."""

    description: str


def profile_alone(config: RunConfig) -> Measured:
    """Measure the configured model on a microbatch of middle size of the configured text.

    Threads are shared out as in training: a CPU stage will have its share of the cores, not all of them.
    """
    device = open_device(config.train.device, local_rank=0)
    share_cores(config.pipeline.stages)
    corpus = open_corpus(config.data)
    model = load_model(config.model, vocab_size=corpus.vocab_size, seed=config.train.seed)
    order = corpus.training_order(config.data)
    size = batch_sizes(config).microbatch_size
    sample = typical_microbatch(order, config)
    notice(f"measuring {len(model.layer_names)} layers")
    try:
        with redirect_stdout(sys.stderr):
            layers = profile(
                model,
                sample,
                device=device.torch_device,
                seed=config.train.seed,
                compile=config.model.compile,
                tell=notice,
            )
    except FullboreError:
        raise
    except Exception as error:
        raise ModelError(f"a layer failed while it was measured: {blame(error)}") from error
    about = {
        "device": str(device.torch_device),
        "dtype": config.model.dtype,
        "sequence_length": config.data.sequence_length,
        "microbatch_size": size,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    kind = "sequences of" if config.data.documents == "joined" else "documents of at most"
    where = f"{about['device']}, {config.model.dtype}, {size} {kind} {config.data.sequence_length}"
    return Measured(layers, about, f"{model.description}; one microbatch on {where}")
