"""Error codes as clients of each API and version expect them."""

from __future__ import annotations

import pytest

from millstream.broker.error_codes import TRANSLATIONS, to_member_error, translate
from millstream.errors import ApiError, ErrorCode
from millstream.protocol.apis import APIS

FENCED = ErrorCode.PRODUCER_FENCED
OLD_FENCED = ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize(
    ("api", "first_that_knows"),
    [
        ("init_producer_id", 4),
        ("add_partitions_to_txn", 2),
        ("add_offsets_to_txn", 2),
        ("end_txn", 2),
    ],
)
def test_older_clients_do_not_know_producer_fenced(api: str, first_that_knows: int) -> None:
    assert translate(api, FENCED, first_that_knows - 1) is OLD_FENCED
    assert translate(api, FENCED, first_that_knows) is FENCED


@pytest.mark.parametrize(
    ("code", "version", "returned"),
    [
        (FENCED, 13, OLD_FENCED),
        (ErrorCode.INVALID_TXN_STATE, 10, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.INVALID_TXN_STATE, 11, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 13, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 12, ErrorCode.CONCURRENT_TRANSACTIONS),
    ],
)
def test_produce(code: ErrorCode, version: int, returned: ErrorCode) -> None:
    assert translate("produce", code, version) is returned


@pytest.mark.parametrize(
    ("code", "version", "returned"),
    [
        (FENCED, 5, OLD_FENCED),
        (ErrorCode.STALE_MEMBER_EPOCH, 5, ErrorCode.ILLEGAL_GENERATION),
        (ErrorCode.INVALID_TXN_STATE, 4, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.TRANSACTION_ABORTABLE, 3, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 2, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
def test_txn_offset_commit(code: ErrorCode, version: int, returned: ErrorCode) -> None:
    assert translate("txn_offset_commit", code, version) is returned


@pytest.mark.parametrize(
    ("code", "returned"),
    [
        (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.FENCED_STATE_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.GROUP_ID_NOT_FOUND),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_share_members(code: ErrorCode, returned: ErrorCode) -> None:
    error = to_member_error(ApiError(code, "why"))
    assert error.code is returned
    assert error.message == "why"


def test_tables_are_named_after_apis() -> None:
    assert set(TRANSLATIONS) - {api.name for api in APIS.values()} == {"share_member"}
