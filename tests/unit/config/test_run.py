"""What a section refuses by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fullbore.config.run import (
    BatchConfig,
    DataConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    PipelineConfig,
    RunConfig,
    TrainConfig,
)
from fullbore.errors import ConfigError


def test_the_defaults_are_those_of_the_documented_run_file() -> None:
    config = RunConfig()
    assert (config.data.source, config.data.sequence_length, config.data.tokenizer) == ("stdlib", 256, "bytes")
    assert (config.pipeline.stages, config.pipeline.schedule, config.pipeline.partition) == (2, "1f1b", "profile")
    assert (config.optimizer.lr, config.optimizer.warmup_steps, config.optimizer.clip_norm) == (1.5e-3, 20, 1.0)
    assert (config.train.steps, config.train.eval_every, config.train.timeout_s) == (120, 40, 60)


@pytest.mark.parametrize("axis", ["tensor", "data", "context", "expert"])
def test_an_axis_that_is_not_built_is_refused_above_1(axis: str) -> None:
    with pytest.raises(ConfigError, match=rf"mesh\.{axis} above 1 is not built yet \({axis}=2\); use 1"):
        MeshConfig(**{axis: 2})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PipelineConfig(stages=0), r"pipeline\.stages must be at least 1 \(stages=0\)"),
        (lambda: BatchConfig(microbatch_size=0), r"batch\.microbatch_size must be at least 1"),
        (lambda: BatchConfig(accumulation=-1), r"batch\.accumulation must be at least 1"),
        (lambda: DataConfig(sequence_length=0), r"data\.sequence_length must be at least 1"),
        (lambda: DataConfig(holdout_fraction=1.0), r"holdout_fraction is a share.*use 0\.05"),
        (lambda: OptimizerConfig(lr=0.0), r"optimizer\.lr must be positive and finite \(lr=0\.0\)"),
        (lambda: OptimizerConfig(lr=float("nan")), r"optimizer\.lr must be positive"),
        (lambda: OptimizerConfig(clip_norm=0.0), r"clip_norm must be positive .*use inf for no clipping"),
        (lambda: OptimizerConfig(betas=(0.9, 1.0)), r"betas are 0 or more and less than 1 \(betas=\[0\.9, 1\.0\]\)"),
        (lambda: TrainConfig(timeout_s=0), r"train\.timeout_s is 0\.01 to 1e6 seconds"),
        (lambda: TrainConfig(steps=0), r"train\.steps must be at least 1"),
        (lambda: PipelineConfig(chunks=0), r"pipeline\.chunks must be at least 1 \(chunks=0\)"),
        (
            lambda: PipelineConfig(partition=(10, 0)),
            r"positive number of layers for each stage \(partition=\[10, 0\]\)",
        ),
        (lambda: ModelConfig(hf="a", factory="b:c"), r"model\.hf or model\.factory, not both"),
        (lambda: ModelConfig(factory="module"), r'the form "package\.module:function" \(factory=\'module\'\)'),
        (lambda: ModelConfig(from_pretrained=True), r"needs model\.hf"),
        (lambda: ModelConfig(config={"a": {"b": None}}), r"model\.config\.a\.b holds .*None is a NoneType"),
    ],
)
def test_refusals_name_the_key_and_the_value(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_the_whole_checks_the_batch() -> None:
    with pytest.raises(ConfigError, match="multiple of"):
        RunConfig(batch=BatchConfig(global_batch=10), pipeline=PipelineConfig(microbatches=4))
