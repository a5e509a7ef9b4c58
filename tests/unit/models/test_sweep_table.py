"""The table in docs/models.md is of the installed transformers, and a sample of it still holds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from fullbore.models.hugging_face.families import BLOCKS, UNSPLITTABLE

ROOT = Path(__file__).parents[3]
SAMPLE = ("llama", "apertus", "cohere2", "deepseek_v4", "falcon", "hy_v4", "olmo", "qwen3_next")


def table() -> dict[str, str]:
    """Family (and variant) -> result, as the document says."""
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)`(?:, ([^|]+?))? \|[^|]*\|[^|]*\| ([^|]+) \|$", text, re.MULTILINE)
    return {f"{family} {variant}".strip(): result for family, variant, result in rows}


def sweep(*families: str) -> dict[str, str]:
    """The same of these families, now."""
    command = [sys.executable, str(ROOT / "benchmarks" / "model_sweep.py"), "--json", *families]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1500)
    return {f"{row['family']} {row['variant']}".strip(): row["result"] for row in json.loads(done.stdout)["rows"]}


def test_it_lists_every_family_with_a_plan_and_every_one_that_fullbore_adds() -> None:
    planned = {
        family
        for family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        if getattr(CONFIG_MAPPING[family], "base_model_pp_plan", None)
    }
    assert {entry for entry in table() if " " not in entry} == planned | set(BLOCKS)


def test_nothing_in_it_is_silently_wrong_and_hardly_anything_refused() -> None:
    found = table()
    assert {family for family, result in found.items() if result != "exact"} == set(UNSPLITTABLE)
    assert all(found[family].startswith("refused: ") for family in UNSPLITTABLE)


def test_a_sample_of_it_holds() -> None:
    found, written = sweep(*SAMPLE), table()
    assert set(SAMPLE) <= found.keys()
    assert all(result == written[entry] == "exact" for entry, result in found.items())


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_all_of_it_holds() -> None:
    assert sweep() == table()
