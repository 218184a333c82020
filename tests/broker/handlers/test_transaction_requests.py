"""What the transactional handlers share."""

from __future__ import annotations

from typing import cast

import pytest

from millstream.broker.handlers._transaction_requests import (
    connection_of,
    require_transactional_id,
)
from millstream.broker.server import BrokerServer
from millstream.broker.services import Client, RequestContext
from millstream.errors import ApiError


def context(version: int) -> RequestContext:
    nobody = cast(BrokerServer, None)
    return RequestContext(
        nobody,
        version,
        "app",
        "127.0.0.1",
        "PLAINTEXT",
        connection_id=7,
        response_bytes_max=int,
        client=Client(),
    )


def test_connection_is_known_by_client_host_and_connection() -> None:
    assert connection_of(context(0)) == ("app", "127.0.0.1", 7)


def test_empty_transactional_id_is_refused() -> None:
    require_transactional_id("tx")
    with pytest.raises(ApiError):
        require_transactional_id("")
