"""The envelope of change records: its settings, and the records that are not rows.

Rows and truncates are encoded by compiled code (`encoding.py`). The records here are rare: logical
messages, the begin and end of transactions, heartbeats. All have Debezium's form, as JSON;
`avro_records.py` makes Avro of them.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from millstream.connect.capture.types import Decimals, HStores
from millstream.errors import ConfigError

if TYPE_CHECKING:
    from millstream.client.schema_registry import RegistrySettings
    from millstream.connect.capture._encoder import StreamContext

CONNECTOR = "postgresql"
MESSAGES = "message"  # the collection of logical messages
VERSION = f"millstream {version('millstream')}"
NEW_KEY_HEADER = "__debezium.newkey"
OLD_KEY_HEADER = "__debezium.oldkey"

Shape = Literal["debezium", "flat"]
Format = Literal["json", "avro"]


@dataclass(frozen=True)
class EnvelopeSettings:
    """How changes are written. The defaults are Debezium's, except that decimals are exact text."""

    server_name: str  # Debezium's topic.prefix: source.name, and the start of topics
    database: str
    format: Format = "json"  # avro: in Confluent's wire format, which needs a registry
    registry: RegistrySettings | None = None
    shape: Shape = "debezium"  # flat: the row and `__deleted`
    decimals: Decimals = "string"
    hstores: HStores = "json"
    tombstones: bool = True  # after deletes of tables that have a key
    transaction_metadata: bool = False  # the block `transaction`
    unavailable_value: str = "__debezium_unavailable_value"  # for unchanged TOAST values

    def __post_init__(self) -> None:
        if (self.format == "avro") != (self.registry is not None):
            raise ConfigError("a schema registry is needed for format avro, and only there")


class Record(NamedTuple):
    """A record that is not a row; the arguments of `ChangeBuffer.append`."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...] = ()


class TransactionSummary(NamedTuple):
    """The number of events of a transaction, in all and by table."""

    event_count: int
    collections: list[tuple[str, int]]


def message_record(
    settings: EnvelopeSettings,
    context: StreamContext,
    *,
    prefix: str,
    content: bytes,
    lsn: int,
    is_transactional: bool,
) -> Record:
    """A message of `pg_logical_emit_message`; a transactional one is counted as an event."""
    source = _source(settings, context, lsn) | {"schema": "", "table": ""}
    block, time_us = None, context.commit_time_us
    if is_transactional:
        block = _transaction(settings, context, *context.count_event(MESSAGES))
    else:
        time_us = context.now_us
        source |= {"txId": None} | _times(time_us)
    value = {
        "op": "m",
        "ts_ms": context.now_us // 1000,
        "source": _ordered(source),
        "transaction": block,
        "message": {"prefix": prefix, "content": base64.b64encode(content).decode()},
    }
    return Record(_json({"prefix": prefix}), _json(value), time_us // 1000)


def transaction_begin(context: StreamContext) -> Record:
    """The start of a transaction, for the topic of transactions."""
    value = {
        "status": "BEGIN",
        "id": context.transaction_id,
        "event_count": None,
        "data_collections": None,
        "ts_ms": context.commit_time_us // 1000,
    }
    return _of_transaction(context, value)


def transaction_end(context: StreamContext, summary: TransactionSummary) -> Record:
    """The end of a transaction, with the number of its events."""
    value = {
        "status": "END",
        "id": context.transaction_id,
        "event_count": summary.event_count,
        "data_collections": [
            {"data_collection": name, "event_count": count} for name, count in summary.collections
        ],
        "ts_ms": context.commit_time_us // 1000,
    }
    return _of_transaction(context, value)


def _of_transaction(context: StreamContext, value: dict[str, Any]) -> Record:
    key = _json({"id": context.transaction_id})
    return Record(key, _json(value), context.commit_time_us // 1000)


def heartbeat_record(settings: EnvelopeSettings, now_us: int) -> Record:
    """A sign of life of an idle capture."""
    key = _json({"serverName": settings.server_name})
    return Record(key, _json({"ts_ms": now_us // 1000}), now_us // 1000)


def _source(settings: EnvelopeSettings, context: StreamContext, lsn: int) -> dict[str, Any]:
    last = context.last_commit_lsn
    return {
        "version": VERSION,
        "connector": CONNECTOR,
        "name": settings.server_name,
        "snapshot": "false",
        "db": settings.database,
        "sequence": _json([None if last is None else str(last), str(lsn)]).decode(),
        **_times(context.commit_time_us),
        "txId": context.xid,
        "lsn": lsn,
        "xmin": None,
        "origin": None,
        "origin_lsn": None,
    }


SOURCE_FIELDS = (
    "version", "connector", "name", "ts_ms", "snapshot", "db", "sequence", "ts_us", "ts_ns",
    "schema", "table", "txId", "lsn", "xmin", "origin", "origin_lsn",
)  # fmt: skip


def _ordered(source: dict[str, Any]) -> dict[str, Any]:
    return {name: source[name] for name in SOURCE_FIELDS}


def _transaction(
    settings: EnvelopeSettings, context: StreamContext, total_order: int, collection_order: int
) -> dict[str, Any] | None:
    if not settings.transaction_metadata:
        return None
    return {
        "id": context.transaction_id,
        "total_order": total_order,
        "data_collection_order": collection_order,
    }


def _times(time_us: int) -> dict[str, int]:
    return {"ts_ms": time_us // 1000, "ts_us": time_us, "ts_ns": time_us * 1000}


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
