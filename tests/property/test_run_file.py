"""What is dumped loads as the same configuration."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fullbore.config.dump import dump_run
from fullbore.config.load import load_run
from fullbore.config.run import (
    BatchConfig,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    PipelineConfig,
    RunConfig,
    TrainConfig,
    batch_sizes,
)
from fullbore.errors import ConfigError

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
positive = st.integers(1, 2**62)
plain: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
configs = st.builds(
    RunConfig,
    model=st.builds(
        ModelConfig,
        hf=st.none() | texts.filter(bool),
        config=st.dictionaries(texts, plain, max_size=3),
        dtype=st.sampled_from(["float32", "bfloat16", "float16", "float64"]),
        compile=st.booleans(),
    ),
    data=st.builds(DataConfig, source=names, seed=st.integers(0, 2**62), holdout_fraction=st.floats(0, 0.99)),
    batch=st.builds(BatchConfig, microbatch_size=st.none() | st.integers(1, 64)),
    pipeline=st.builds(
        PipelineConfig,
        microbatches=st.none() | st.integers(1, 64),
        schedule=names,
        chunks=st.none() | positive,
        options=st.dictionaries(texts, st.integers(-(2**63), 2**63 - 1), max_size=3),
        partition=st.sampled_from(["profile", "equal"]) | st.tuples(positive, positive),
        recompute=st.sampled_from(["none", "full"]) | st.lists(texts, max_size=3).map(tuple),
    )
    | st.builds(PipelineConfig, recompute=st.just("full"), recompute_ahead=st.booleans()),
    optimizer=st.builds(
        OptimizerConfig,
        lr=st.floats(0, exclude_min=True, allow_infinity=False),
        clip_norm=st.just(math.inf) | st.floats(1e-9, 1e9),
        betas=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
    ),
    train=st.builds(TrainConfig, run_dir=st.none() | names, steps=positive, tensorboard=st.booleans()),
)


@given(configs)
def test_a_dump_loads_as_the_same_configuration(config: RunConfig) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.toml")
        path.write_bytes(dump_run(config).encode())
        loaded = load_run(path)
    assert loaded == config
    assert dump_run(loaded) == dump_run(config)


@given(
    size=st.none() | st.integers(1, 40),
    count=st.none() | st.integers(1, 40),
    total=st.none() | st.integers(1, 200),
    accumulation=st.integers(1, 4),
)
def test_batch_sizes_are_consistent_and_keep_what_was_given(
    size: int | None, count: int | None, total: int | None, accumulation: int
) -> None:
    try:
        config = RunConfig(
            batch=BatchConfig(microbatch_size=size, global_batch=total, accumulation=accumulation),
            pipeline=PipelineConfig(microbatches=count),
        )
    except ConfigError:
        assert total is not None
        known = (size or 1) * (count or 1) * accumulation
        assert total % known or (None not in (size, count) and total != known)
        return
    sizes = batch_sizes(config)
    assert sizes.global_batch == sizes.microbatch_size * sizes.microbatches * sizes.accumulation
    assert size in (None, sizes.microbatch_size)
    assert count in (None, sizes.microbatches)
    assert total in (None, sizes.global_batch)
