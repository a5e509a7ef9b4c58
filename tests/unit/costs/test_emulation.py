"""What a costs file may say for an emulated run, and what it may not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fullbore.costs.emulation import EmulationSettings, SlowRank, read_emulation
from fullbore.costs.layer import LayerCost, write_costs
from fullbore.costs.links import Link
from fullbore.errors import CostsError

FULL = {
    "jitter": 0.25,
    "seed": 7,
    "links": [{"latency_ns": 200, "bytes_per_s": 10**9}, {}, {"bytes_per_s": None}],
    "faults": [{"kind": "slow", "rank": 2, "factor": 2}],
}


def read(tmp_path: Path, document: Any) -> EmulationSettings:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(document))
    return read_emulation(path)


def test_everything_that_can_be_said_is_read(tmp_path: Path) -> None:
    found = read(tmp_path, {"layers": [], **FULL})
    assert found == EmulationSettings(0.25, 7, (Link(200, 10**9), Link(), Link()), (SlowRank(2, 2),))
    assert found.slowness(num_ranks=4) == (1.0, 1.0, 2.0, 1.0)


def test_a_costs_file_without_any_of_it_is_a_plain_emulation(tmp_path: Path) -> None:
    write_costs(tmp_path / "costs.json", [LayerCost("a", 1, 1, 1)], device="cpu", dtype="float32", microbatch_size=2)
    assert read_emulation(tmp_path / "costs.json") == EmulationSettings()


@pytest.mark.parametrize("document", [{}, FULL])
def test_what_was_read_is_written_back(document: dict[str, Any], tmp_path: Path) -> None:
    found = read(tmp_path, {"layers": [], **document})
    assert read(tmp_path, {"layers": [], **found.document()}) == found


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"fault": []}, r"unknown key 'fault' \(.*costs.json\); did you mean 'faults'\?"),
        ({"jitter": 1}, r"jitter is a share of each duration, 0 or more and less than 1 \(given 1\) in .*costs.json"),
        ({"jitter": True}, "jitter is a share"),
        ({"jitter": float("nan")}, "jitter is a share"),
        ({"seed": -1}, r"seed is an integer of at least 0 \(given -1\)"),
        ({"links": {}}, r"links is a list of JSON objects \(given \{\}\)"),
        ({"links": [3]}, r"links is a list of JSON objects \(given \[3\]\)"),
        ({"links": [{"latency": 3}]}, r"unknown key 'latency' \(a link: .*\); did you mean 'latency_ns'\?"),
        ({"links": [{"latency_ns": 1.5}]}, r"latency_ns is an integer \(given 1.5\)"),
        ({"links": [{"latency_ns": None}]}, r"latency_ns is an integer \(given None\)"),
        ({"links": [{"latency_ns": -1}]}, r"latency_ns must be at least 0 \(latency_ns=-1\) in .*costs.json"),
        ({"links": [{"latency_ns": 10**30}]}, r"latency_ns is at most 9007199254740992, a hundred days \(given 10+\)"),
        ({"links": [{"bytes_per_s": 0}]}, r"bytes_per_s must be above 0 \(bytes_per_s=0\)"),
        ({"faults": [{"kind": "dead", "rank": 0}]}, r"the kind of a fault is one of slow \(a fault: .*'dead'.*\)"),
        ({"faults": [{"kind": ["slow"], "rank": 0}]}, "the kind of a fault is one of slow"),
        ({"faults": [{"rank": 0, "factor": 2}]}, "the kind of a fault is one of slow"),
        ({"faults": [{"kind": "slow", "rank": 0}]}, r"a slow rank needs rank and factor \(.* lacks factor\)"),
        ({"faults": [{"kind": "slow", "stage": 0, "factor": 2}]}, "unknown key 'stage'"),
        ({"faults": [{"kind": "slow", "rank": "2", "factor": 2}]}, "the rank of a fault is an integer of at least 0"),
        ({"faults": [{"kind": "slow", "rank": 0, "factor": 0.5}]}, r"a number from 1 to 1000 \(given 0.5\)"),
        ({"faults": [{"kind": "slow", "rank": 0, "factor": float("inf")}]}, "a number from 1 to 1000"),
        ({"faults": [{"kind": "slow", "rank": 0, "factor": 2}] * 2}, r"by one factor \(rank 0 has 2 faults\)"),
        ([], r"a costs file holds \{\"layers\": \[...\]\} \(.* holds a list\)"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(document: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CostsError, match=message):
        read(tmp_path, document)


def test_a_file_that_is_not_there_or_not_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(CostsError, match=r"cannot read the costs file .*nothing.json: No such file"):
        read_emulation(tmp_path / "nothing.json")
    (tmp_path / "costs.json").write_text("{")
    with pytest.raises(CostsError, match=r"costs.json is not JSON"):
        read_emulation(tmp_path / "costs.json")


def test_a_link_that_takes_longer_than_anyone_waits_is_refused() -> None:
    assert Link(5, bytes_per_s=1).delay_ns(1000) == 10**12 + 5
    with pytest.raises(CostsError, match=r"a message of 1125899906842624 bytes would take more than a hundred days"):
        Link(bytes_per_s=1).delay_ns(2**50)


def test_links_and_faults_fit_the_pipeline() -> None:
    EmulationSettings(links=(Link(),) * 3, faults=(SlowRank(3, 2),)).require(num_ranks=4, num_stages=4)
    with pytest.raises(CostsError, match=r"3 for 4 stages \(given 1\); an empty object is a free link"):
        EmulationSettings(links=(Link(),)).require(num_ranks=4, num_stages=4)
    with pytest.raises(CostsError, match=r"a rank that is there: 0 to 1 with 2 ranks \(given 2\)"):
        EmulationSettings(faults=(SlowRank(2, 2),)).require(num_ranks=2, num_stages=4)
