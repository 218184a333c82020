"""Request and response headers, checked against kio's."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_writer

from millstream.errors import ProtocolError
from millstream.protocol import headers


def encode(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


@given(
    key=st.integers(0, 100),
    version=st.integers(0, 20),
    correlation_id=st.integers(-(2**31), 2**31 - 1),
    client_id=st.one_of(st.none(), st.text(max_size=40)),
    flexible=st.booleans(),
)
def test_request_header_is_read_as_kio_writes_it(
    key: int, version: int, correlation_id: int, client_id: str | None, flexible: bool
) -> None:
    cls: Any = HeaderV2 if flexible else HeaderV1
    header = encode(
        cls(
            request_api_key=key,
            request_api_version=version,
            correlation_id=correlation_id,
            client_id=client_id,
        )
    )
    frame = header + b"body"
    *fixed, end = headers.parse_fixed(frame)
    assert fixed == [key, version, correlation_id]
    assert headers.client_id_of(frame, end) == client_id
    assert headers.body_start(frame, end, flexible=flexible) == len(header)


@pytest.mark.parametrize("frame", [b"", b"\x00\x03", b"\x00\x03\x00\x00\x00\x00\x00\x01\x00"])
def test_request_without_a_whole_header_is_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        headers.parse_fixed(frame)


def test_client_id_that_runs_past_the_end_is_refused() -> None:
    with pytest.raises(ProtocolError, match="client id"):
        headers.parse_fixed(b"\x00\x03\x00\x00\x00\x00\x00\x01\x00\x09short")


def test_request_that_ends_inside_its_header_is_refused() -> None:
    frame = b"\x00\x03\x00\x09\x00\x00\x00\x01\xff\xff"
    with pytest.raises(ProtocolError, match="truncated inside its header"):
        headers.body_start(frame, 10, flexible=True)
