from __future__ import annotations

import pytest

from fullbore.errors import ConfigError
from fullbore.runtime.condition import Condition


def said(condition: Condition) -> str:
    with pytest.raises(ConfigError) as error:
        condition.require_ready()
    return str(error.value)


def test_in_the_middle_of_a_step_it_has_not_failed() -> None:
    condition = Condition()
    condition.require_ready()
    with condition.under_way():
        assert said(condition) == "this pipeline is in the middle of a step or an evaluation; call it when that is over"
        assert condition.is_broken
    condition.require_ready()
    assert not condition.is_broken


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_step_that_does_not_end_is_a_failure_also_after_closing(error: type[BaseException]) -> None:
    condition = Condition()
    with pytest.raises(error), condition.under_way():
        raise error
    condition.close()
    assert "has failed in an earlier step" in said(condition)
    assert (condition.is_broken, condition.is_closed) == (True, False)


def test_closed_is_closed() -> None:
    condition = Condition()
    condition.close()
    assert said(condition) == "this pipeline is closed and cannot go on; build a new one"
    assert (condition.is_broken, condition.is_closed) == (False, True)
