"""`fullbore profile`: measure what every layer of a model takes."""

from __future__ import annotations

from pathlib import Path

import click

from fullbore.cli.argument_types import MODEL_TYPE, PATH_TYPE, is_there
from fullbore.cli.file_kind import COSTS
from fullbore.cli.output import json_option, print_json, print_text
from fullbore.cli.output_file import Output, require_outputs
from fullbore.cli.run_options import import_from_here
from fullbore.config.load import load_run
from fullbore.config.run import RunConfig
from fullbore.errors import ConfigError

__all__ = ["command"]


@click.command()
@click.argument("model", type=MODEL_TYPE, required=False, metavar="[RUN.toml|MODEL]")
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Override a key.")
@click.option("-o", "output", type=PATH_TYPE, metavar="FILE", help="Write the costs as JSON.")
@json_option
def command(model: str | None, overrides: tuple[str, ...], output: Path | None, as_json: bool) -> None:
    """Measure forward, backward-input and backward-weight time, parameters and bytes of every layer.

    MODEL is a folder with a Hugging Face config.json, or package.module:function. One microbatch of the configured
    length is measured on one device; weights, buffers and random state are left as they were.

    \b
    Examples:
      fullbore profile -o profile.json
      fullbore profile run.toml --set data.sequence_length=1024 --json
    """
    from fullbore.costs.layer import costs_document, write_costs
    from fullbore.report.profile import render_profile
    from fullbore.session.profiling import profile_alone

    import_from_here()
    source = None if model is None else Path(model)
    require_outputs(Output(option="-o", path=output, kind=COSTS), inputs={"MODEL": source})
    config = _config(model, overrides)
    measured = profile_alone(config)
    if output is not None:
        write_costs(output, measured.layers, **measured.about)
    if as_json:
        print_json(costs_document(measured.layers, **measured.about))
    else:
        print_text(render_profile(measured.layers, description=measured.description))


def _config(model: str | None, overrides: tuple[str, ...]) -> RunConfig:
    """A run file, or a model with every other key at its default."""
    if model is None:
        return load_run(None, overrides=overrides)
    path = Path(model)
    if path.suffix == ".toml":
        return load_run(path, overrides=overrides)
    if is_there(path, kind=Path.is_dir):
        return load_run(None, overrides=[f"model.hf={model}", *overrides])
    if ":" in model:
        return load_run(None, overrides=[f"model.factory={model}", *overrides])
    raise ConfigError(
        f"profile takes a run file (.toml), a folder with a config.json, or package.module:function (given {model!r})"
    )
