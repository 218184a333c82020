"""A bare client of the Kafka protocol, for what no well-behaved client would send.

Messages are kio's, batches aiokafka's, the socket blocks: nothing here is Millstream's own.

    with Wire(bootstrap) as wire:
        answer = wire.call("metadata", 12, topics=None, allow_auto_topic_creation=False)
"""

from __future__ import annotations

import dataclasses
import io
import socket
import struct
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from importlib import import_module
from typing import Any, get_args, get_type_hints

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer

from millstream.protocol.apis import APIS, OWN_API_KEY_MIN
from tests.peers.patience import PATIENCE_SECONDS

OWN_APIS = {it.name: it.key for it in APIS.values() if it.key >= OWN_API_KEY_MIN}
API_KEYS = {name: key for key, name in api_key_map.items()} | OWN_APIS
_CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


class ConnectionEnded(Exception):
    """The broker closed the connection."""


class Wire:
    def __init__(
        self,
        bootstrap: str,
        timeout_seconds: float = PATIENCE_SECONDS,
        client_id: str = "wire",
        source: str = "",
    ) -> None:
        """From this address of the machine, if it matters."""
        host, port = bootstrap.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout_seconds, (source, 0))
        self._correlation_id = 0
        self._client_id = client_id

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def call(self, api: str, version: int, **fields: Any) -> Any:
        """Send a request and return the decoded response."""
        self.start(api, version, **fields)
        return self.receive(api, version)

    def start(self, api: str, version: int, **fields: Any) -> None:
        """Send a request whose response is received later."""
        cls = entity_class(api, version, "request")
        header = request_header(cls, self._correlation_id, self._client_id)
        self.send(frame(header + encode(build(cls, fields))))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self, api: str, version: int) -> Any:
        """The next response, taken for an answer to this API in this version."""
        return response_entity(api, version, self.receive_frame())

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def is_closed(self) -> bool:
        """Wait for the broker to close the connection or to answer; says which it did."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _exactly(self, size: int) -> bytes:
        chunks = bytearray()
        while len(chunks) < size:
            try:
                chunk = self.socket.recv(size - len(chunks))
            except ConnectionResetError as error:
                raise ConnectionEnded from error
            if not chunk:
                raise ConnectionEnded
            chunks += chunk
        return bytes(chunks)


def request_frame(api: str, version: int, correlation_id: int = 0, **fields: Any) -> bytes:
    """A whole request: size, header, body."""
    cls = entity_class(api, version, "request")
    return frame(request_header(cls, correlation_id) + encode(build(cls, fields)))


def request_header(cls: type[Any], correlation_id: int = 0, client_id: str = "wire") -> bytes:
    header = cls.__header_schema__(
        request_api_key=cls.__api_key__,
        request_api_version=cls.__version__,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    return encode(header)


def frame(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def response_entity(api: str, version: int, content: bytes) -> Any:
    cls = entity_class(api, version, "response")
    _, size = _reader(cls.__header_schema__)(content, 0)
    entity, body_size = _reader(cls)(content[size:], 0)
    assert size + body_size == len(content), f"{api} v{version}: bytes follow the response"
    return entity


def encode(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


@cache
def entity_class(api: str, version: int, kind: str) -> type[Any]:
    own, kios = f"millstream.protocol.own.{api}", f"kio.schema.{api}.v{version}.{kind}"
    path = own if api in OWN_APIS else kios
    module = import_module(path)
    name = "".join(part.capitalize() for part in api.split("_")) + kind.capitalize()
    cls: type[Any] = getattr(module, name)
    return cls


@cache
def _reader(cls: type[Any]) -> Any:
    return entity_reader(cls)


def build(cls: type[Any], fields: dict[str, Any]) -> Any:
    """An entity from plain values: dicts for nested entities, ints for durations; the rest zero."""
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    known = {field.name for field in dataclasses.fields(cls)}
    assert fields.keys() <= known, (
        f"{cls.__name__} v{cls.__version__} has no {fields.keys() - known}"
    )
    for field in dataclasses.fields(cls):
        if field.name in fields:
            values[field.name] = _value(field, hints[field.name], fields[field.name])
        elif field.default is dataclasses.MISSING:
            values[field.name] = _zero(field, hints[field.name])
    return cls(**values)


def nested_class(hint: Any) -> tuple[type[Any] | None, bool]:
    """The entity class that a field of this type holds, if any, and whether it is an array."""
    for option in get_args(hint) if type(None) in get_args(hint) else (hint,):
        arguments = get_args(option)
        is_array = bool(arguments) and arguments[-1] is Ellipsis
        element = arguments[0] if is_array else option
        if dataclasses.is_dataclass(element) and isinstance(element, type):
            return element, is_array
        if is_array:
            return None, True
    return None, False


def _value(field: dataclasses.Field[Any], hint: Any, value: Any) -> Any:
    nested, is_array = nested_class(hint)
    if value is None:
        return None
    if nested is not None:
        return tuple(build(nested, item) for item in value) if is_array else build(nested, value)
    if is_array:
        return tuple(value)
    if str(field.metadata.get("kafka_type")).startswith("timedelta") and isinstance(value, int):
        return timedelta(milliseconds=value)
    return value


def _zero(field: dataclasses.Field[Any], hint: Any) -> Any:
    if type(None) in get_args(hint):
        return None
    nested, is_array = nested_class(hint)
    if is_array:
        return ()
    if nested is not None:
        return build(nested, {})
    kind = str(field.metadata.get("kafka_type"))
    zeros = {"string": "", "bytes": b"", "bool": False, "records": b"", "uuid": uuid.UUID(int=0)}
    if kind.startswith("timedelta"):
        return timedelta(0)
    return zeros.get(kind, 0)


def batch(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    compression: str = "none",
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    timestamp_ms: int | None = None,
    transactional: bool = False,
) -> bytes:
    """One record batch; made now, since retention takes older ones at once."""
    if timestamp_ms is None:
        timestamp_ms = int(time.time() * 1000)
    builder = DefaultRecordBatchBuilder(
        2,
        _CODECS[compression],
        int(transactional),
        producer_id,
        producer_epoch,
        base_sequence,
        1 << 30,
    )
    for index, value in enumerate(values):
        key = keys[index] if keys else None
        builder.append(index, timestamp_ms, key, value, [])
    return bytes(builder.build())


def produce_fields(
    topic: str, records: bytes, *, partition: int = 0, acks: int = -1
) -> dict[str, Any]:
    """The fields of a Produce request up to version 12, which still names the topic."""
    partition_data = ({"index": partition, "records": records},)
    topic_data = ({"name": topic, "partition_data": partition_data},)
    return {"acks": acks, "timeout": 10_000, "topic_data": topic_data}
