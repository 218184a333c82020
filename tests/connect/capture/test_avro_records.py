"""Records that are not rows, in Avro: fastavro reads back what JSON has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.client.schema_registry import RegistrySettings
from millstream.connect.capture.avro_records import (
    HEARTBEATS,
    MESSAGES,
    TRANSACTIONS,
    RecordSchemas,
    formatted,
)
from millstream.connect.capture.encoding import StreamContext, commit
from millstream.connect.capture.envelope import (
    EnvelopeSettings,
    Record,
    heartbeat_record,
    message_record,
    transaction_begin,
    transaction_end,
)
from tests.connect.capture.test_avro import as_json, decoded
from tests.peers.schema_registry import SchemaRegistry, running_registry


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with running_registry() as running:
        yield running


def all_records(settings: EnvelopeSettings) -> list[tuple[Record, RecordSchemas]]:
    """One of each kind."""
    context = StreamContext(last_commit_lsn=90)
    context.begin(xid=7, commit_lsn=100, commit_time_us=1_794_790_742_945_758, now_us=1)
    context.count("public.orders")
    texts: dict[str, Any] = {"prefix": "é", "content": b"\0by me", "lsn": 95}
    messages = [
        message_record(settings, context, **texts, is_transactional=it) for it in (True, False)
    ]
    begin = transaction_begin(context)
    end = transaction_end(context, commit(context, 110))
    return [
        *((it, MESSAGES) for it in messages),
        (begin, TRANSACTIONS),
        (end, TRANSACTIONS),
        (heartbeat_record(settings, -1_000_000), HEARTBEATS),
    ]


def test_records_are_those_of_json(registry: SchemaRegistry) -> None:
    settings = EnvelopeSettings(
        "shop",
        "demo",
        format="avro",
        registry=RegistrySettings((registry.url,)),
        transaction_metadata=True,
    )
    for number, (record, schemas) in enumerate(all_records(settings)):
        made = formatted(record, schemas, settings, f"topic-{number}")
        assert decoded(registry, made.key) == json.loads(record.key or b"")
        assert as_json(decoded(registry, made.value)) == json.loads(record.value or b"")
        assert made.timestamp_ms == record.timestamp_ms
        assert {f"topic-{number}-key", f"topic-{number}-value"} <= registry.subjects.keys()


def test_json_stays_as_it_is() -> None:
    settings = EnvelopeSettings("shop", "demo")
    for record, schemas in all_records(settings):
        assert formatted(record, schemas, settings, "topic") is record
