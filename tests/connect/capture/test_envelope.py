"""The records that are not rows: messages, transactions, heartbeats."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millstream.connect.capture.encoding import StreamContext, commit
from millstream.connect.capture.envelope import (
    EnvelopeSettings,
    Record,
    heartbeat_record,
    message_record,
    transaction_begin,
    transaction_end,
)

SETTINGS = EnvelopeSettings("shop", "demo", transaction_metadata=True)
COMMITTED_US, NOW_US = 1_794_790_742_945_758, 1_794_790_743_000_001


@pytest.fixture
def context() -> StreamContext:
    context = StreamContext(last_commit_lsn=90)
    context.begin(xid=7, commit_lsn=100, commit_time_us=COMMITTED_US, now_us=NOW_US)
    return context


def value(record: Record | None) -> Any:
    assert record is not None
    return json.loads(record.value or b"")


def test_transactional_message_is_an_event_of_its_transaction(context: StreamContext) -> None:
    record = message_record(
        SETTINGS, context, prefix="audit", content=b"\0by me", lsn=95, is_transactional=True
    )
    assert json.loads(record.key or b"") == {"prefix": "audit"}
    assert list(value(record)) == ["op", "ts_ms", "source", "transaction", "message"]
    assert value(record)["message"] == {"prefix": "audit", "content": "AGJ5IG1l"}
    assert value(record)["source"]["txId"] == 7
    assert context.ordinal == 0
    assert commit(context, 110).event_count == 1


def test_message_outside_a_transaction_has_no_transaction(context: StreamContext) -> None:
    record = message_record(
        SETTINGS, context, prefix="audit", content=b"x", lsn=95, is_transactional=False
    )
    assert value(record)["transaction"] is None
    assert value(record)["source"]["txId"] is None
    assert value(record)["source"]["ts_us"] == NOW_US
    assert commit(context, 110).event_count == 0


def test_transaction_begins_and_ends_with_one_id(context: StreamContext) -> None:
    begin = transaction_begin(context)
    context.count("public.orders")
    end = transaction_end(context, commit(context, 110))
    assert begin.key == end.key == b'{"id":"7:100"}'
    assert value(begin)["status"] == "BEGIN"
    assert value(begin)["event_count"] is None
    assert value(end) == {
        "status": "END",
        "id": "7:100",
        "event_count": 1,
        "data_collections": [{"data_collection": "public.orders", "event_count": 1}],
        "ts_ms": COMMITTED_US // 1000,
    }
    assert context.last_commit_lsn == 110


def test_heartbeat_names_the_server() -> None:
    record = heartbeat_record(SETTINGS, NOW_US)
    assert record.key == b'{"serverName":"shop"}'
    assert value(record) == {"ts_ms": NOW_US // 1000}
