from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fullbore

SOURCES = Path(fullbore.__file__).parent
MODULES = {
    ".".join(("fullbore", *path.relative_to(SOURCES).with_suffix("").parts)).removesuffix(".__init__"): ast.parse(
        path.read_text(encoding="utf-8")
    )
    for path in SOURCES.rglob("*.py")
}


def offered(tree: ast.Module) -> set[str]:
    """What ``__all__`` lists."""
    lists = [node.value for node in tree.body if isinstance(node, ast.Assign) and "__all__" in names_of(node.targets)]
    return {str(name) for found in lists for name in ast.literal_eval(found)}


def made(tree: ast.Module) -> set[str]:
    """The classes, functions and constants of a module."""
    found = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            found |= names_of(node.targets if isinstance(node, ast.Assign) else [node.target])
    return found


def names_of(targets: list[ast.expr]) -> set[str]:
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}


@pytest.mark.parametrize("module", sorted(MODULES.keys() - {"fullbore"}))
def test_a_module_offers_what_it_makes_and_others_take_what_it_offers(module: str) -> None:
    """So a name has one home, and `__all__` is all that a change may break elsewhere."""
    assert offered(MODULES[module]) <= made(MODULES[module])
    for node in ast.walk(MODULES[module]):
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            taken = {alias.name for alias in node.names if f"{node.module}.{alias.name}" not in MODULES}
            assert taken <= offered(MODULES[node.module]), node.module


@pytest.mark.parametrize("name", fullbore.__all__)
def test_every_public_name_is_there(name: str) -> None:
    found = getattr(fullbore, name)
    assert found.__name__ == name
    assert found.__module__.startswith("fullbore.")


def test_the_list_is_sorted_and_has_no_name_twice() -> None:
    assert fullbore.__all__ == sorted(set(fullbore.__all__))


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'fullbore' has no attribute 'Pipelin'"):
        fullbore.Pipelin  # noqa: B018


def test_importing_fullbore_imports_no_torch() -> None:
    """Nor do the names that have nothing to do with tensors."""
    code = (
        "import sys, fullbore; fullbore.Schedule, fullbore.Placement, fullbore.Timeline, fullbore.render_text; "
        "print(sorted({'torch', 'transformers', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
