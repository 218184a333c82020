"""When results are emitted, as users write it."""

from __future__ import annotations

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.windows.emission import Emit, parse_emit


def test_emission_is_read() -> None:
    assert parse_emit("arrival") == Emit("arrival")
    assert parse_emit("every 10 seconds") == Emit("every", 10_000_000)


def test_emission_that_is_not_offered_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match='choose "final", "change" or "every 10 seconds"'):
        parse_emit("arrival", ("final", "change", "every"))
    with pytest.raises(ConfigError, match='choose "arrival" or "final"'):
        parse_emit("every 10 seconds", ("arrival", "final"))
    with pytest.raises(ConfigError, match="choose"):
        parse_emit("every")
