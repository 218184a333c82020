"""The mechanisms of listeners."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from millstream.broker.metadata.store import MetadataLog
from millstream.broker.security.mechanisms import Mechanisms
from millstream.clock import SystemClock
from millstream.config.broker import BrokerConfig
from millstream.security.exchange import AuthenticationFailed
from millstream.security.scram import ScramCredentials


def mechanisms(credentials: ScramCredentials) -> Mechanisms:
    metadata = cast(MetadataLog, SimpleNamespace(image=SimpleNamespace(scram=credentials)))
    return Mechanisms(BrokerConfig.from_values(), metadata, SystemClock(), cluster_id="c")


def test_begins_an_exchange() -> None:
    exchange = mechanisms({}).begin("SASL_PLAINTEXT", "SCRAM-SHA-256", "127.0.0.1")
    assert exchange.respond(b"n,,n=alice,r=abc").startswith(b"r=abc")


def test_mechanism_that_is_not_enabled_is_refused() -> None:
    with pytest.raises(AuthenticationFailed, match="GSSAPI is not enabled"):
        mechanisms({}).begin("SASL_PLAINTEXT", "GSSAPI", "127.0.0.1")
