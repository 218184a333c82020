"""Shared options: assignments."""

from __future__ import annotations

import pytest

from millstream.cli.failures import EXIT_USAGE, CommandFailed
from millstream.cli.options import parse_assignments


def test_assignments_split_at_the_first_equals_sign() -> None:
    assert parse_assignments(["a=1", "b=x=y", "c="], "-c") == {"a": "1", "b": "x=y", "c": ""}


@pytest.mark.parametrize("assignment", ["a", "=1", ""])
def test_assignment_without_name_or_value_is_a_usage_error(assignment: str) -> None:
    with pytest.raises(CommandFailed, match="--config") as caught:
        parse_assignments([assignment], "--config")
    assert caught.value.exit_code == EXIT_USAGE
