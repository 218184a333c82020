"""Sinks by address, and options that do not belong to them."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.connect.sinks.config import parse_config
from millstream.connect.sinks.opening import open_sink
from millstream.connect.sinks.search import SearchSink
from millstream.connect.sinks.sqlite import SqliteSink
from millstream.errors import ConfigError


def opened(to: str, **topic: Any) -> Any:
    given = {"name": "shop", "broker": "a:1", "to": to, "topics": {"t": {"key": "id", **topic}}}
    return open_sink(parse_config(given))


def test_address_decides_the_kind() -> None:
    assert type(opened("sqlite:///a.db", columns="id long")) is SqliteSink
    assert type(opened("fts5:////tmp/a.db", fields=["text"])) is SearchSink


@pytest.mark.parametrize(
    ("to", "topic", "complaint"),
    [
        ("mysql://x", {}, "must start with sqlite://"),
        ("sqlite", {}, "must start with"),
        ("sqlite:///a.db", {}, "columns must be given for sqlite://"),
        ("sqlite:///a.db", {"columns": "x int"}, r"key names \['id'\]"),
        ("sqlite:///a.db", {"columns": "id int", "fields": ["x"]}, "sqlite:// has no fields"),
        ("sqlite://a.db", {"columns": "id int"}, "three slashes"),
        ("fts5:///a.db", {}, "fields must be given"),
        ("fts5:///a.db", {"fields": ["x"], "columns": "id int"}, "fts5:// has no columns"),
    ],
)
def test_mistake_is_named(to: str, topic: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        opened(to, **topic)
