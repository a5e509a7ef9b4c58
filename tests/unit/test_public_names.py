from __future__ import annotations

import subprocess
import sys

import pytest

import fullbore


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
