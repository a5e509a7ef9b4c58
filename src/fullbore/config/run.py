"""RunConfig: the run file as types, one frozen struct per section.

Every key of the run file is a field here with its default, its choices and its meaning; nothing else in fullbore
invents a setting. A section checks itself, the whole checks the batch arithmetic. A key that is absent and whose
default is None is one that fullbore chooses. Reading and writing the file are `fullbore.config.load` and
`fullbore.config.dump`.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from fullbore.config.batch import BatchSizes, solve_sizes
from fullbore.errors import ConfigError

__all__ = [
    "BatchConfig",
    "DataConfig",
    "MeshConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PipelineConfig",
    "RunConfig",
    "TrainConfig",
    "batch_sizes",
]


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section ``[model]``: which model, in which precision. Without ``hf`` or ``factory``, a small built-in Llama."""

    hf: str | None = None
    """A local folder with a Hugging Face ``config.json``."""

    factory: str | None = None
    """``package.module:function``, a function that returns the model."""

    config: dict[str, Any] = msgspec.field(default_factory=dict)
    """Overrides of the Hugging Face configuration: plain values, lists and tables."""

    from_pretrained: bool = False
    """Read the weights of ``hf``; otherwise weights are random, from ``train.seed``."""

    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    """Precision of parameters and computation. Under bfloat16 and float16, gradients and masters are float32; under
    float16 the loss is scaled, by a factor that adapts."""

    loss_chunk: int | None = None
    """Tokens for which logits exist at a time in the loss, where a vocabulary is large; all of a microbatch where
    absent. Only Hugging Face models."""

    compile: bool = False
    """Compile the layers."""

    def __post_init__(self) -> None:
        if self.hf is not None and self.factory is not None:
            raise ConfigError(
                f"a model comes from model.hf or model.factory, not both (hf={self.hf!r}, factory={self.factory!r})"
            )
        if self.hf == "":
            raise ConfigError("model.hf is empty; give the folder of a config.json, or leave it out")
        if self.from_pretrained and self.hf is None:
            raise ConfigError(
                "model.from_pretrained = true needs model.hf, the folder that holds the weights (hf is absent)"
            )
        if self.factory is not None:
            module, _, function = self.factory.partition(":")
            if not all(part.isidentifier() for part in [*module.split("."), function]):
                raise ConfigError(f'model.factory has the form "package.module:function" (factory={self.factory!r})')
        _need_plain(self.config, key="model.config")
        _need_at_least("model", self, 1, "loss_chunk")


class DataConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section ``[data]``: which text, cut how, in which order."""

    source: str = "stdlib"
    """``stdlib`` (the sources of the running Python's standard library), a folder of text, a ``.jsonl`` file with a
    ``text`` key, a ``.bin`` file of tokens, or a folder saved by Hugging Face datasets."""

    sequence_length: int = 256
    """Tokens of one sample; of the longest, where documents are samples."""

    documents: Literal["joined", "padded", "packed", "balanced"] = "joined"
    """What a sample is. ``joined``: an equal piece of all text in one run. Otherwise a document, or a piece of one:
    ``padded`` to the longest of its microbatch; ``packed`` behind others in one row without padding; ``balanced``,
    packed so that all microbatches of the step take the same time."""

    pair_cost: float = 0.0
    """For ``balanced``: what two tokens of one document that see each other cost, relative to one token. 0 where
    attention is masked over whole rows and costs the same for every grouping."""

    tokenizer: str = "bytes"
    """``bytes`` (one token per byte, 256 of them), or the path of a tokenizers JSON."""

    vocab_size: int | None = None
    """Number of token ids, where the source is a ``.bin`` file without a sidecar; otherwise the data says it."""

    seed: int = 0
    """Decides the order of the samples, together with the epoch."""

    holdout_fraction: float = 0.05
    """Share of the text kept out of training for evaluation, in whole documents; 0 keeps none."""

    def __post_init__(self) -> None:
        if not self.source:
            raise ConfigError('data.source is empty; use "stdlib" or a path')
        if not self.tokenizer:
            raise ConfigError('data.tokenizer is empty; use "bytes" or the path of a tokenizers JSON')
        _need_at_least("data", self, 1, "sequence_length", "vocab_size")
        _need_at_least("data", self, 0, "seed")
        if not 0 <= self.pair_cost < math.inf:
            raise ConfigError(f"data.pair_cost is 0 or more and finite (pair_cost={self.pair_cost})")
        if self.pair_cost and self.documents != "balanced":
            raise ConfigError(
                f'data.pair_cost is for data.documents = "balanced" (documents="{self.documents}", '
                f"pair_cost={self.pair_cost}); leave it out"
            )
        if not 0 <= self.holdout_fraction < 1:
            raise ConfigError(
                f"data.holdout_fraction is a share of the text, 0 or more and less than 1 "
                f"(holdout_fraction={self.holdout_fraction}); use 0.05, or 0 for no evaluation data"
            )


class BatchConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section ``[batch]``: sequences per optimizer step. `batch_sizes` fills in what is absent."""

    global_batch: int | None = None
    """Sequences per optimizer step = microbatch_size * pipeline.microbatches * mesh.data * accumulation; 16 where all
    are absent."""

    microbatch_size: int | None = None
    """Sequences per microbatch; 2 where absent and nothing else fixes it."""

    accumulation: int = 1
    """Pipeline passes per optimizer step."""

    def __post_init__(self) -> None:
        _need_at_least("batch", self, 1, "global_batch", "microbatch_size", "accumulation")


class PipelineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section ``[pipeline]``: how the layers are cut and in which order the pieces run."""

    stages: int = 2
    """Pipeline ranks p."""

    chunks: int | None = None
    """Stages per rank v; the schedule's own where absent."""

    microbatches: int | None = None
    """Microbatches m per pipeline pass; 8 where absent and nothing else fixes it."""

    schedule: str = "1f1b"
    """A schedule's name, as `fullbore schedule list` gives them, or a file with one."""

    options: dict[str, int] = msgspec.field(default_factory=dict)
    """What the schedule takes beside its sizes, as `fullbore schedule list` shows it."""

    memory_cap: float | None = None
    """Most microbatches' activations that a rank may keep, of all its layers; 1F1B's for ``auto`` where absent."""

    partition: Literal["profile", "equal", "parameters"] | tuple[int, ...] = "profile"
    """By measured time, equal counts, equal parameters, or the number of layers of each stage."""

    recompute: Literal["none", "full", "selective"] | tuple[str, ...] = "none"
    """Which layers run their forward again in the backward instead of keeping activations, or their names."""

    recompute_ahead: bool = False
    """They do so before, while the gradient is on its way: an action of its own (R) for each stage that recomputes."""

    def __post_init__(self) -> None:
        _need_at_least("pipeline", self, 1, "stages", "chunks", "microbatches")
        if not self.schedule:
            raise ConfigError('pipeline.schedule is empty; use a name such as "1f1b"')
        if self.memory_cap is not None and not (self.memory_cap > 0 and math.isfinite(self.memory_cap)):
            raise ConfigError(
                "pipeline.memory_cap is a number of microbatches above 0 whose activations a rank may keep "
                f"(memory_cap={self.memory_cap})"
            )
        if self.recompute_ahead and self.recompute in ("none", ()):
            raise ConfigError(
                "pipeline.recompute_ahead runs the recomputation of layers before their backward, and "
                'pipeline.recompute names no layer; set it to "full" or a list of layer names, or leave '
                "recompute_ahead at false"
            )
        if isinstance(self.partition, tuple) and min(self.partition, default=0) < 1:
            raise ConfigError(
                "pipeline.partition needs a positive number of layers for each stage "
                f'(partition={list(self.partition)}); use 1 or more, or a word such as "equal"'
            )


class MeshConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section ``[mesh]``: the other axes of the device mesh. One that is not built yet is refused above 1."""

    tensor: int = 1
    data: int = 1
    data_mode: Literal["replicate", "shard"] = "replicate"
    """Every data rank holds all of its stage, or a shard of it."""

    context: int = 1
    expert: int = 1

    def __post_init__(self) -> None:
        axes = ("tensor", "data", "context", "expert")
        _need_at_least("mesh", self, 1, *axes)
        if self.data_mode != "replicate":
            raise ConfigError(f'mesh.data_mode = "{self.data_mode}" is not built yet; use "replicate"')
        for axis in axes:
            if getattr(self, axis) > 1:
                raise ConfigError(f"mesh.{axis} above 1 is not built yet ({axis}={getattr(self, axis)}); use 1")


class OptimizerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section ``[optimizer]``: the update and the learning rate."""

    name: Literal["adamw", "sgd"] = "adamw"
    lr: float = 1.5e-3
    """The highest learning rate, reached after the warm-up."""

    warmup_steps: int = 20
    """Steps over which the learning rate rises linearly to ``lr``."""

    decay: Literal["cosine", "wsd", "none"] = "cosine"
    """After the warm-up: half a cosine, constant and then a linear end (warm-up, stable, decay), or constant."""

    final_lr_fraction: float = 0.1
    """The last step's learning rate, as a share of ``lr`` (cosine and wsd)."""

    wsd_decay_fraction: float = 0.2
    """Share of the steps that the linear end of wsd takes."""

    weight_decay: float = 0.1
    """Decoupled (AdamW) or added to the gradient (SGD); only for weights of two or more dimensions."""

    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay of the two moments."""

    eps: float = 1e-8
    """AdamW's floor under the square root."""

    momentum: float = 0.0
    """SGD's momentum."""

    clip_norm: float = 1.0
    """Largest global gradient norm; ``inf`` never clips."""

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise ConfigError(f"optimizer.lr must be positive and finite (lr={self.lr})")
        _need_at_least("optimizer", self, 0, "warmup_steps")
        for name in ("final_lr_fraction", "wsd_decay_fraction"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"optimizer.{name} is a share, 0 to 1 ({name}={getattr(self, name)})")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(
                f"optimizer.betas are 0 or more and less than 1 (betas={list(self.betas)}); use [0.9, 0.95]"
            )
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"optimizer.momentum is 0 or more and less than 1 (momentum={self.momentum})")
        for name in ("weight_decay", "eps"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"optimizer.{name} must be 0 or more and finite ({name}={getattr(self, name)})")
        if not self.clip_norm > 0:
            raise ConfigError(
                f"optimizer.clip_norm must be positive (clip_norm={self.clip_norm}); use inf for no clipping"
            )


class TrainConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section ``[train]``: how long, what to write down, and where."""

    steps: int = 120
    """Optimizer steps of the whole run."""

    seed: int = 0
    """Decides the initial weights, together with each layer's name."""

    eval_every: int = 40
    """Steps between evaluations; 0 never."""

    eval_batches: int = 4
    """Global batches of held-out sequences in one evaluation."""

    checkpoint_every: int = 0
    """Steps between checkpoints; 0 never."""

    run_dir: str | None = None
    """Where everything is written; absent, a new folder under ``runs/``."""

    log_every: int = 1
    """Steps between printed lines. ``metrics.jsonl`` has every step."""

    tensorboard: bool = True
    """Write TensorBoard files where tensorboard is installed."""

    device: str = "auto"
    """``auto``, ``cpu``, ``cuda`` or another torch device."""

    timeout_s: float = 60.0
    """Seconds a rank waits for a message before the run fails and says for whom."""

    def __post_init__(self) -> None:
        _need_at_least("train", self, 1, "steps", "log_every", "eval_batches")
        _need_at_least("train", self, 0, "seed", "eval_every", "checkpoint_every")
        if not 0.01 <= self.timeout_s <= 1e6:
            raise ConfigError(f"train.timeout_s is 0.01 to 1e6 seconds (timeout_s={self.timeout_s})")
        if self.seed >= 2**63:
            raise ConfigError(f"train.seed is below 2**63 (seed={self.seed})")
        for name in ("device", "run_dir"):
            if getattr(self, name) == "":
                raise ConfigError(f"train.{name} is empty; leave it out or give one")


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole run file. ``RunConfig()`` trains the built-in small model on real text."""

    model: ModelConfig = msgspec.field(default_factory=ModelConfig)
    data: DataConfig = msgspec.field(default_factory=DataConfig)
    batch: BatchConfig = msgspec.field(default_factory=BatchConfig)
    pipeline: PipelineConfig = msgspec.field(default_factory=PipelineConfig)
    mesh: MeshConfig = msgspec.field(default_factory=MeshConfig)
    optimizer: OptimizerConfig = msgspec.field(default_factory=OptimizerConfig)
    train: TrainConfig = msgspec.field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        batch_sizes(self)


def batch_sizes(config: RunConfig) -> BatchSizes:
    """The batch sizes of a configuration, absent ones filled in. Raises `ConfigError` for a contradiction."""
    return solve_sizes(
        microbatch_size=config.batch.microbatch_size,
        microbatches=config.pipeline.microbatches,
        global_batch=config.batch.global_batch,
        accumulation=config.batch.accumulation,
        data=config.mesh.data,
    )


def _need_at_least(section: str, config: msgspec.Struct, least: int, *names: str) -> None:
    """An absent (None) value is chosen later and checks itself then."""
    for name in names:
        value = getattr(config, name)
        if value is not None and value < least:
            raise ConfigError(f"{section}.{name} must be at least {least} ({name}={value})")


def _need_plain(value: object, *, key: str) -> None:
    """Only what TOML can hold, so that the resolved config can always be written beside the run."""
    if isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise ConfigError(f"the keys of {key} are text ({name!r} is a {type(name).__name__})")
            _need_plain(item, key=f"{key}.{name}")
    elif isinstance(value, list):
        for item in value:
            _need_plain(item, key=key)
    elif not isinstance(value, bool | int | float | str):
        raise ConfigError(
            f"{key} holds booleans, numbers, text, lists and tables ({value!r} is a {type(value).__name__})"
        )
