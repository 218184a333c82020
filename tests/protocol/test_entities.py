"""Our reader of requests against kio's writer, for every request of Kafka's and of ours."""

from __future__ import annotations

import pkgutil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.index import api_key_map

from millstream.errors import ProtocolError
from millstream.protocol.entities import TOO_SHORT, make_reader
from tests.drawing import draws
from tests.peers.wire import OWN_APIS, encode, entity_class
from tests.protocol.kio_entities import entities

APIS = sorted([*api_key_map.values(), *OWN_APIS])


def versions_of(api: str) -> list[int]:
    if api in OWN_APIS:
        return [0]
    package = __import__(f"kio.schema.{api}", fromlist=["__path__"])
    return sorted(int(it.name[1:]) for it in pkgutil.iter_modules(package.__path__))


@pytest.mark.parametrize("api", APIS)
@settings(max_examples=10)
@given(data=st.data())
def test_reader_reads_what_kio_writes(api: str, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(versions_of(api)))
    cls = entity_class(api, version, "request")
    entity = data.draw(entities(cls))
    body = encode(entity)
    assert make_reader(cls)(body, 0) == (entity, len(body))


@settings(max_examples=draws(200))
@given(api=st.sampled_from(APIS), body=st.binary(max_size=200), data=st.data())
def test_reader_reads_or_refuses_any_bytes(api: str, body: bytes, data: st.DataObject) -> None:
    cls = entity_class(api, data.draw(st.sampled_from(versions_of(api))), "request")
    entity: Any = None
    try:
        entity, size = make_reader(cls)(body, 0)
    except (ProtocolError, *TOO_SHORT):
        return
    assert isinstance(entity, cls)
    assert size <= len(body)


@pytest.mark.parametrize("length", [b"\x7f\xff\xff\xff", b"\x00\x10\x00\x00"])
def test_reader_refuses_an_array_longer_than_its_bytes(length: bytes) -> None:
    with pytest.raises(ProtocolError, match="array of"):
        make_reader(entity_class("create_topics", 4, "request"))(length + b"\0" * 40, 0)
