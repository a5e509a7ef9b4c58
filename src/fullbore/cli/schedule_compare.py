"""`fullbore schedule compare`."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

import click

from fullbore.cli.output import answer_no, json_option, print_json, print_text, require_cap
from fullbore.cli.schedule_options import memory_model_option
from fullbore.costs.unit import parse_unit_costs
from fullbore.report.comparison import compare_schedules, require_comparable
from fullbore.schedules.sizes import require_sizes
from fullbore.synthesis.catalogue import CATALOGUE

__all__ = ["command"]


@click.command("compare")
@click.option("-p", "ranks", type=int, required=True, metavar="RANKS", help="Number of ranks.")
@click.option("-m", "microbatches", type=int, required=True, metavar="MICROBATCHES", help="Microbatches per step.")
@click.option("-v", "chunks", type=int, metavar="CHUNKS", help="Stages per rank; each schedule's own by default.")
@click.option(
    "--cost",
    default="1,1,1",
    show_default=True,
    metavar="F,I,W",
    help="Time of forward, backward for the input, backward for the weights of one microbatch on one rank's whole "
    "share; each may be a ':' list, one value a rank.",
)
@click.option("--comm", default="0", metavar="C", help="Delay of a transfer between ranks, or one value a boundary.")
@click.option("--memory-cap", type=float, metavar="X", help="Leave out what keeps more microbatch-shares on a rank.")
@memory_model_option
@json_option
def command(
    ranks: int,
    microbatches: int,
    chunks: int | None,
    cost: str,
    comm: str,
    memory_cap: float | None,
    frees: float,
    as_json: bool,
) -> None:
    """Every schedule that fits these sizes, fastest first; below it why the others do not fit.

    `auto` is made for these costs, links and memory, over one stage a rank or two, and so never slower than the others
    that run on one stream of stages; the line below the table says how far from the best possible the fastest is.

    \b
    Example:
      fullbore schedule compare -p 4 -m 8 --cost 1,1.2,.8 --comm 0.1 --memory-cap 4
    """
    require_sizes("a comparison", num_ranks=ranks, num_microbatches=microbatches)
    cap = require_cap(memory_cap)
    require_sizes("a comparison", num_chunks=1 if chunks is None else chunks)
    require_comparable(ranks, num_microbatches=microbatches, num_chunks=chunks)
    for word in comm.split(":"):
        parse_unit_costs(cost, num_ranks=ranks, comm=word)
    found = compare_schedules(
        CATALOGUE.values(),
        num_ranks=ranks,
        num_microbatches=microbatches,
        num_chunks=chunks,
        cost=cost,
        comm=comm,
        memory_cap=cap,
        input_backward_frees=Fraction(str(frees)),
        tell=partial(click.echo, err=True),
    )
    if as_json:
        print_json(found.document())
    elif found.rows:
        print_text(found.text())
    if not found.rows:
        reasons = "".join(f"\n  {one.name}: {one.reason}" for one in found.left_out)
        answer_no(f"no schedule fits {ranks} ranks and {microbatches} microbatches:{reasons}")
