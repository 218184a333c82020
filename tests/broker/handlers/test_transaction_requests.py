"""What the transactional handlers share: words that clients of every version know."""

from __future__ import annotations

from typing import cast

import pytest

from millstream.broker.handlers._transaction_requests import (
    code_for,
    connection_of,
    require_transactional_id,
)
from millstream.broker.server import BrokerServer
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode


def context(version: int) -> RequestContext:
    nobody = cast(BrokerServer, None)
    return RequestContext(
        nobody, version, "app", "127.0.0.1", "PLAINTEXT", connection_id=7, response_bytes_max=int
    )


def test_fenced_producer_is_told_in_the_words_of_its_version() -> None:
    fenced = ApiError(ErrorCode.PRODUCER_FENCED, "")
    assert code_for(fenced, context(1), fenced_since=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert code_for(fenced, context(2), fenced_since=2) is ErrorCode.PRODUCER_FENCED


def test_other_errors_are_the_same_in_all_versions() -> None:
    error = ApiError(ErrorCode.INVALID_TXN_STATE, "")
    assert code_for(error, context(0), fenced_since=2) is ErrorCode.INVALID_TXN_STATE


def test_speaker_is_known_by_client_host_and_connection() -> None:
    assert connection_of(context(0)) == ("app", "127.0.0.1", 7)


def test_empty_transactional_id_is_refused() -> None:
    require_transactional_id("tx")
    with pytest.raises(ApiError):
        require_transactional_id("")
