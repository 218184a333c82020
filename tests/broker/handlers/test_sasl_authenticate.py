"""SaslAuthenticate where clients do not authenticate."""

from __future__ import annotations

import pytest

from millstream import Broker
from millstream.errors import ErrorCode
from tests.peers.wire import Wire


@pytest.mark.parametrize("version", [0, 1, 2])
def test_it_is_an_illegal_state_and_nothing_else_happens(version: int) -> None:
    with Broker.start() as broker, Wire(broker.bootstrap_servers) as wire:
        answer = wire.call("sasl_authenticate", version, auth_bytes=b"x")
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert wire.call("api_versions", 0).error_code == ErrorCode.NONE
