"""Settings of a console."""

from __future__ import annotations

from millstream.console.settings import ConsoleSettings


def test_repr_has_no_secrets() -> None:
    settings = ConsoleSettings("b:9092", {"sasl.password": "secret"})
    assert "secret" not in repr(settings)
    assert "b:9092" in repr(settings)
