"""Fuzz: every API in every version, from requests that are valid to ones that are nonsense.

A request is drawn field by field from the schema of the API and version, kio's or our own, with
names that exist and names that do not, then perhaps damaged: bytes flipped, cut, inserted. Whatever
comes, the server answers with a response of that API and version or closes the connection; it never
goes silent, never logs a traceback, and a neighbour is served as before.
"""

from __future__ import annotations

import dataclasses
import socket
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kio.serial.errors import OutOfBoundValue

from millstream.protocol.apis import APIS
from tests.peers.servers import Server, start_millstream
from tests.peers.wire import (
    ConnectionEnded,
    Wire,
    batch,
    encode,
    entity_class,
    frame,
    nested_class,
    request_header,
    response_entity,
)

NAMES = ["fuzzed", "absent", "", "a" * 300, "../x", "fuzzed-group", "ü\u2028", "__consumer_offsets"]
# An answer may take as long as the request allows, so requests allow little.
SILENCE_SECONDS_MAX = 30


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("fuzz")
    settings = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "2"}
    server = start_millstream(directory / "data", settings)
    with Wire(server.bootstrap) as wire:
        wire.call("metadata", 12, topics=({"name": "fuzzed"},))
    yield server
    server.kill()


def offered(server: Server) -> list[tuple[str, int]]:
    with Wire(server.bootstrap) as wire:
        answer = wire.call("api_versions", 0)
    return [
        (APIS[entry.api_key].name, version)
        for entry in answer.api_keys
        for version in range(entry.min_version, entry.max_version + 1)
        if (entry.api_key, version) not in {(0, 0), (0, 1), (0, 2)}  # offered, never served
    ]


def values(field: dataclasses.Field[Any], hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field: plausible ones more often than absurd ones."""
    nested, is_array = nested_class(hint)
    element = entities(nested) if nested is not None else primitives(field)
    strategy = st.lists(element, max_size=3).map(tuple) if is_array else element
    return st.none() | strategy if type(None) in get_args(hint) else strategy


def primitives(field: dataclasses.Field[Any]) -> st.SearchStrategy[Any]:
    kind = str(field.metadata.get("kafka_type"))
    integers = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
    if kind in integers:
        limit = 2 ** (integers[kind] - 1)
        return st.sampled_from([0, 1, -1, 2, 5]) | st.integers(-limit, limit - 1)
    if kind in ("timedelta_i32", "timedelta_i64"):
        return st.sampled_from([0, 1, 50, 6000]).map(lambda ms: timedelta(milliseconds=ms))
    choices: dict[str, st.SearchStrategy[Any]] = {
        "string": st.sampled_from(NAMES) | st.text(max_size=8),
        "bytes": st.binary(max_size=40),
        "records": st.sampled_from([batch([b"x"]), batch([b"y"] * 3, compression="gzip"), b""])
        | st.binary(max_size=80),
        "bool": st.booleans(),
        "uuid": st.sampled_from([None, uuid.UUID(int=0), uuid.UUID(int=7)]),
        "datetime_i64": st.just(datetime.fromtimestamp(0, UTC)),
        "error_code": st.just(0),
        "uint16": st.integers(0, 2**16 - 1),
        "uint32": st.integers(0, 2**32 - 1),
        "float64": st.floats(allow_nan=False),
    }
    return choices[kind]


def entities(cls: type[Any]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls)
    fields = {field.name: values(field, hints[field.name]) for field in dataclasses.fields(cls)}
    return st.builds(cls, **fields)


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """The content with a few bytes flipped, cut off or put in."""
    data = bytearray(content)
    for _ in range(draw(st.integers(0, 4))):
        position = draw(st.integers(0, max(len(data) - 1, 0)))
        match draw(st.sampled_from(["flip", "cut", "insert", "grow"])):
            case "flip" if data:
                data[position] = draw(st.integers(0, 255))
            case "cut":
                del data[position:]
            case "insert":
                data[position:position] = draw(st.binary(max_size=4))
            case "grow" if len(data) >= 4:
                data[position : position + 4] = b"\x7f\xff\xff\xff"
    return bytes(data)


def exchange(server: Server, api: str, version: int, content: bytes, *, valid: bool) -> None:
    """Send a request; the server must answer it in its own format, or close the connection."""
    with Wire(server.bootstrap, SILENCE_SECONDS_MAX) as wire:
        wire.send(frame(content))
        # Half-closed: whatever the server makes of the bytes, it need wait for no more of them.
        wire.socket.shutdown(socket.SHUT_WR)
        try:
            answer = wire.receive_frame()
        except ConnectionEnded:
            return
        if valid:
            try:
                response_entity(api, version, answer)
            except OutOfBoundValue as error:
                # The parser does not know that -1 is no timestamp, as of a producer whose records
                # have none.
                if "negative timestamp" not in str(error):
                    raise


def fuzz(server: Server, api: str, version: int, examples: int) -> None:
    cls = entity_class(api, version, "request")
    head = request_header(cls)

    @settings(
        max_examples=examples,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=True,
    )
    @given(entity=entities(cls), data=st.data())
    def exercise(entity: Any, data: st.DataObject) -> None:
        body = encode(entity)
        spoilt = data.draw(damaged(body))
        exchange(server, api, version, head + spoilt, valid=spoilt == body)

    exercise()


def check_health(server: Server, log_path: Path) -> None:
    assert server.process.poll() is None, "the server has died"
    log = log_path.read_text(errors="replace")
    assert "Traceback" not in log, log[log.index("Traceback") :][:3000]
    with Wire(server.bootstrap) as wire:
        assert wire.call("api_versions", 0).error_code == 0


@pytest.mark.parametrize(
    "examples", [3, pytest.param(150, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_every_api_in_every_version_survives_fuzzing(server: Server, examples: int) -> None:
    log_path = server.data.with_name(server.data.name + ".log")
    for api, version in offered(server):
        fuzz(server, api, version, examples)
        check_health(server, log_path)


@pytest.mark.parametrize("examples", [200, pytest.param(20_000, marks=pytest.mark.slow)])
def test_frame_decoder_survives_any_bytes(server: Server, examples: int) -> None:
    @settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(data=st.binary(max_size=64))
    def exercise(data: bytes) -> None:
        with Wire(server.bootstrap) as wire:
            wire.send(data)
            wire.socket.shutdown(socket.SHUT_WR)
            while wire.socket.recv(65536):
                continue

    exercise()
    check_health(server, server.data.with_name(server.data.name + ".log"))
