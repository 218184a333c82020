"""Error codes as clients expect them: the coordinators' and the persister's, per API and version.

A coordinator raises the error that describes what happened. Kafka returns another code from some
APIs, because older clients do not know the new one, or because they handle another one well: they
repeat a Produce that fails with NOT_ENOUGH_REPLICAS. `TRANSLATIONS` is the only place for this.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.errors import ApiError, ErrorCode

VERSION_MAX = 1 << 15


class Rule(NamedTuple):
    """These codes become that one, in versions [since, before) of the API."""

    codes: tuple[ErrorCode, ...]
    becomes: ErrorCode
    since: int = 0
    before: int = VERSION_MAX


COORDINATOR_UNREADY = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
SHARE_STATE_GONE = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

SHARE_MEMBER = "share_member"  # of ShareFetch and ShareAcknowledge; other keys are names of APIs

TRANSLATIONS: dict[str, tuple[Rule, ...]] = {
    "produce": (
        Rule((ErrorCode.PRODUCER_FENCED,), ErrorCode.INVALID_PRODUCER_EPOCH),
        Rule((ErrorCode.INVALID_TXN_STATE,), ErrorCode.TRANSACTION_ABORTABLE, since=11),
        Rule((ErrorCode.TRANSACTION_ABORTABLE,), ErrorCode.INVALID_TXN_STATE, before=11),
        Rule((*COORDINATOR_UNREADY, ErrorCode.NETWORK_EXCEPTION), ErrorCode.NOT_ENOUGH_REPLICAS),
        # From v12 on clients add partitions with Produce, and wait for the transaction before.
        Rule((ErrorCode.CONCURRENT_TRANSACTIONS,), ErrorCode.NOT_ENOUGH_REPLICAS, before=12),
    ),
    "init_producer_id": (
        Rule((ErrorCode.PRODUCER_FENCED,), ErrorCode.INVALID_PRODUCER_EPOCH, before=4),
    ),
    "add_partitions_to_txn": (
        Rule((ErrorCode.PRODUCER_FENCED,), ErrorCode.INVALID_PRODUCER_EPOCH, before=2),
    ),
    "add_offsets_to_txn": (
        Rule((ErrorCode.PRODUCER_FENCED,), ErrorCode.INVALID_PRODUCER_EPOCH, before=2),
    ),
    "end_txn": (Rule((ErrorCode.PRODUCER_FENCED,), ErrorCode.INVALID_PRODUCER_EPOCH, before=2),),
    "txn_offset_commit": (
        Rule((ErrorCode.PRODUCER_FENCED,), ErrorCode.INVALID_PRODUCER_EPOCH),
        Rule(
            (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND),
            ErrorCode.ILLEGAL_GENERATION,
        ),
        Rule((ErrorCode.INVALID_TXN_STATE,), ErrorCode.TRANSACTION_ABORTABLE, since=4),
        Rule((ErrorCode.TRANSACTION_ABORTABLE,), ErrorCode.INVALID_TXN_STATE, before=4),
        Rule(
            (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,), ErrorCode.COORDINATOR_NOT_AVAILABLE, before=2
        ),
    ),
    "write_txn_markers": (Rule(COORDINATOR_UNREADY, ErrorCode.NOT_LEADER_OR_FOLLOWER),),
    SHARE_MEMBER: (
        Rule(COORDINATOR_UNREADY, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        Rule(
            (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH),
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ),
    ),
}


def translate(api: str, code: ErrorCode, api_version: int = 0) -> ErrorCode:
    """The code that this version of the API returns; the same one where no rule applies."""
    for rule in TRANSLATIONS[api]:
        if code in rule.codes and rule.since <= api_version < rule.before:
            return rule.becomes
    return code


def to_member_error(error: ApiError) -> ApiError:
    """An error of the persister, as an error for members of the share group."""
    code = translate(SHARE_MEMBER, error.code)
    if code is error.code and code not in (*SHARE_STATE_GONE, ErrorCode.COORDINATOR_NOT_AVAILABLE):
        code = ErrorCode.UNKNOWN_SERVER_ERROR
    return ApiError(code, error.message)
