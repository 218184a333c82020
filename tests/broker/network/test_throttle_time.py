"""The throttle time in encoded responses, for every API and version."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from millstream.broker.deferred import Buffers, Deferred
from millstream.broker.network.throttle_time import after, set_throttle_time
from millstream.protocol.apis import APIS, Api
from millstream.protocol.endpoints import NodeEndpoint
from millstream.protocol.messages import _entity_class, decode_response, encode_response
from millstream.protocol.produce import encode_produce_response

EVERY = [
    (api, version)
    for api in APIS.values()
    for version in range(api.min_version, api.max_version + 1)
]
API_KEYS = [{"api_key": key, "min_version": 0, "max_version": 3} for key in range(200)]


def fields_of(api: Api) -> dict[str, object]:
    return {"api_keys": API_KEYS} if api.name == "api_versions" else {}


@pytest.mark.parametrize(
    ("api", "version"), EVERY, ids=[f"{api.name}-{version}" for api, version in EVERY]
)
def test_throttle_time_is_set_where_there_is_one(api: Api, version: int) -> None:
    body = encode_response(api.name, version, fields_of(api))
    known = {
        field.name for field in dataclasses.fields(_entity_class(api.name, version, "response"))
    }
    changed = set_throttle_time(api, version, body, 1234)
    assert isinstance(changed, bytes)
    if "throttle_time" not in known:
        assert changed == body
        return
    before = decode_response(api.name, version, body)
    now = decode_response(api.name, version, changed)
    assert now.throttle_time == timedelta(milliseconds=1234)
    assert dataclasses.replace(now, throttle_time=timedelta(0)) == before


def test_longer_throttle_time_stays() -> None:
    body = encode_response("heartbeat", 4, {"throttle_time": 500})
    assert set_throttle_time(APIS[12], 4, body, 499) == body


def test_first_piece_of_a_response_in_pieces_has_it() -> None:
    changed = set_throttle_time(APIS[1], 11, [bytes(10), b"records"], 258)
    assert changed == [b"\x00\x00\x01\x02" + bytes(6), b"records"]


@pytest.mark.parametrize("rack", [None, "a", "rack-1"])
def test_produce_response_with_endpoints_stays_whole(rack: str | None) -> None:
    endpoints = [NodeEndpoint(1, "localhost", 65_280, rack)]
    body = encode_produce_response(12, [], endpoints)
    assert set_throttle_time(APIS[0], 12, body, 5) == body


def test_deferred_body_is_changed_when_it_is_there() -> None:
    inner = Deferred(exclusive=True)
    changed = after(inner, lambda body: b"changed " + bytes(body[:2]))  # type: ignore[arg-type]
    assert isinstance(changed, Deferred)
    assert changed.exclusive
    assert not changed.is_done
    inner.complete(b"body")
    assert changed.body == b"changed bo"


def test_deferred_without_body_closes_the_connection_still() -> None:
    inner = Deferred()
    changed = after(inner, pytest.fail)
    assert isinstance(changed, Deferred)
    inner.complete(None)
    assert changed.is_done
    assert changed.body is None


def test_deferred_is_cancelled_with_its_client() -> None:
    inner = Deferred()
    given_up: list[bool] = []
    inner.on_cancel = lambda: given_up.append(True)
    changed = after(inner, pytest.fail)
    assert isinstance(changed, Deferred)
    changed.cancel()
    assert given_up == [True]


def test_no_answer_stays_none() -> None:
    def change(body: Buffers) -> Buffers:
        raise AssertionError(body)

    assert after(None, change) is None
