"""Settings of metrics."""

from __future__ import annotations

import pytest

from millstream.config.broker import BrokerConfig
from millstream.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9404", ("127.0.0.1", 9404)),
        ("[::1]:0", ("::1", 0)),
        (":80", ("", 80)),
        ("", None),
    ],
)
def test_the_listener_is_host_and_port(text: str, address: tuple[str, int] | None) -> None:
    config = BrokerConfig.from_values({"millstream.metrics.listener": text})
    assert config.metrics_address == address


@pytest.mark.parametrize("text", ["9404", "localhost", "localhost:x", "localhost:70000"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"millstream.metrics.listener: .*127.0.0.1:9404"):
        BrokerConfig.from_values({"millstream.metrics.listener": text})


def test_the_token_is_a_secret() -> None:
    config = BrokerConfig.from_values({"millstream.metrics.token": "hunter2"})
    assert config.millstream_metrics_token == "hunter2"
    assert "hunter2" not in repr(config)
