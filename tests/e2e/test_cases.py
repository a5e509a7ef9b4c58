"""Every public report of docs/cases.md has the test that the page names."""

from __future__ import annotations

import ast
import re

from tests.e2e.documents import ROOT

PAGE = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
LINKS = re.findall(r"\[`(test_\w+)`\]\(\.\./(tests/[\w/]+\.py)\)", PAGE)


def test_every_row_names_a_test_that_is_there() -> None:
    _header, *rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    assert len(rows) == len(LINKS) >= 30
    for name, path in LINKS:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{path}::{name}"
