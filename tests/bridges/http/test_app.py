"""The routes of a bridge, over HTTP, with a real broker."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from millstream.bridges.http import app
from millstream.bridges.http.signatures import sign, standard_key
from millstream.bridges.running import Bridge
from millstream.testing.pytest_plugin import SharedBroker
from tests.bridges.conftest import PATIENCE_SECONDS, bridge_to, read_records, request

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
V2 = {"content-type": "application/vnd.kafka.json.v2+json"}
V3 = {"content-type": "application/json"}
TOKEN = {"authorization": "Bearer the token"}


class Running(NamedTuple):
    bridge: Bridge
    address: str
    topic: str
    hooked: str


@pytest.fixture
def running(millstream: SharedBroker) -> Iterator[Running]:
    topic, hooked = millstream.unique_topic(), millstream.unique_topic()
    with bridge_to(
        millstream,
        http={
            "listen": "127.0.0.1:0",
            "produce": [topic],
            "read": [topic],
            "token": "the token",
            "body_bytes_max": 4096,
            "streams_max": 1,
        },
        hooks={"in": {"topic": hooked, "secrets": [SECRET], "headers": ["X-Kind"]}},
    ) as bridge:
        assert bridge.http is not None
        yield Running(bridge, bridge.http.address, topic, hooked)


def test_v2_batch_is_durable_when_it_is_answered(
    running: Running, millstream: SharedBroker
) -> None:
    body = {
        "records": [{"key": "a", "value": {"n": 1}}, {"value": 2}, {"value": 3, "partition": 9}]
    }
    path = f"/topics/{running.topic}"
    status, answer = request(running.address, "POST", path, body, V2 | TOKEN)
    assert status == 200
    assert [it["offset"] is None for it in answer["offsets"]] == [False, False, True]
    found = read_records(millstream, running.topic, 2)
    assert {it.value() for it in found} == {b'{"n":1}', b"2"}
    assert running.bridge.counts.of("records_in") == 2
    assert running.bridge.counts.of("records_refused") == 1


def test_v3_answers_each_object_of_a_stream(running: Running, millstream: SharedBroker) -> None:
    path = f"/kafka/v3/clusters/c/topics/{running.topic}/records"
    record = {"value": {"type": "STRING", "data": "one"}, "key": {"type": "JSON", "data": "k"}}
    status, answer = request(running.address, "POST", path, record, V3 | TOKEN)
    assert (status, answer["error_code"], answer["offset"]) == (200, 200, 0)
    bad = {"value": {"type": "NONE"}}
    status, answer = request(running.address, "POST", path, bad, V3 | TOKEN)
    assert (status, answer["error_code"]) == (422, 422)

    connection = http.client.HTTPConnection(running.address, timeout=PATIENCE_SECONDS)
    pieces = iter([b'{"value": {"type": "STRING",', b' "data": "two"}}\n{"value"', b": 7} {}"])
    connection.request("POST", path, pieces, V3 | TOKEN, encode_chunked=True)
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    assert [json.loads(it)["error_code"] for it in lines] == [200, 422]
    values = [it.value() for it in read_records(millstream, running.topic, 2)]
    assert values == [b"one", b"two"]


def test_cloud_event_becomes_a_record(running: Running, millstream: SharedBroker) -> None:
    event = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
    path = f"/events/{running.topic}"
    assert request(running.address, "POST", path, b"x", event | TOKEN) == (204, b"")
    (record,) = read_records(millstream, running.topic, 1)
    assert (dict(record.headers())["ce_type"], record.value()) == (b"t", b"x")
    assert request(running.address, "POST", path, b"x", TOKEN)[0] == 400


def signed(body: bytes, message_id: str = "id-1") -> dict[str, str]:
    now = int(time.time())
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(now),
        "webhook-signature": sign([standard_key(SECRET)], message_id, now, body),
        "content-type": "application/json",
        "x-kind": "k",
    }


def test_webhook_is_verified_written_once_and_needs_no_token(
    running: Running, millstream: SharedBroker
) -> None:
    for message_id in ("id-1", "id-1", "id-2"):
        headers = signed(b"{}", message_id)
        assert request(running.address, "POST", "/hooks/in", b"{}", headers)[0] == 204
    assert request(running.address, "POST", "/hooks/in", b"[]", signed(b"{}"))[0] == 401
    assert request(running.address, "POST", "/hooks/out", b"{}", signed(b"{}"))[0] == 404
    found = read_records(millstream, running.hooked, 2)
    headers = [dict(it.headers()) for it in found]
    assert [it["webhook-id"] for it in headers] == [b"id-1", b"id-2"]
    assert headers[0]["x-kind"] == b"k"
    assert "webhook-signature" not in headers[0]
    counts = running.bridge.counts
    assert counts.of("hooks_repeated", hook="in") == 1
    assert counts.of("hooks_refused", reason="wrong signature") == 1


def test_webhook_is_recognized_after_a_restart(millstream: SharedBroker) -> None:
    topic = millstream.unique_topic()
    for number in range(2):
        with bridge_to(
            millstream,
            http={"listen": "127.0.0.1:0"},
            hooks={"in": {"topic": topic, "secrets": [SECRET]}},
        ) as bridge:
            assert bridge.http is not None
            for message_id in ("id-1", f"of run {number}"):
                headers = signed(b"{}", message_id)
                assert request(bridge.http.address, "POST", "/hooks/in", b"{}", headers)[0] == 204
            assert bridge.counts.of("hooks_repeated") == number
    found = [dict(it.headers())["webhook-id"] for it in read_records(millstream, topic, 3)]
    assert found == [b"id-1", b"of run 0", b"of run 1"]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/topics/{topic}", V2, 401),
        ("/topics/{topic}", V2 | TOKEN | {"origin": "https://evil.example"}, 403),
        ("/topics/{topic}", TOKEN | {"content-type": "text/plain"}, 415),
        ("/topics/other", V2 | TOKEN, 403),
        ("/topics/__consumer_offsets", V2 | TOKEN, 403),
        ("/v3/clusters/c/topics/{topic}/records", TOKEN, 415),
    ],
)
def test_request_that_may_not_write_is_refused(
    running: Running, path: str, headers: dict[str, str], status: int
) -> None:
    given = path.format(topic=running.topic)
    body = {"records": [{"value": 1}]}
    assert request(running.address, "POST", given, body, headers)[0] == status
    assert running.bridge.counts.of("records_in") == 0


def test_large_body_is_refused(running: Running) -> None:
    body = {"records": [{"value": "x" * 5000}]}
    for path in (f"/topics/{running.topic}", f"/v3/clusters/c/topics/{running.topic}/records"):
        headers = {"content-type": "application/json"} | TOKEN
        status, answer = request(running.address, "POST", path, body, headers)
        assert status == 413, answer


def open_stream(running: Running, query: str = "", **headers: str) -> Any:
    connection = http.client.HTTPConnection(running.address, timeout=PATIENCE_SECONDS)
    connection.request("GET", f"/topics/{running.topic}/events{query}", headers=TOKEN | headers)
    return connection.getresponse()


def next_event(response: Any) -> dict[str, str]:
    """The next event that is not a comment."""
    found: dict[str, str] = {}
    while True:
        line = response.readline().decode()
        assert line, "the stream ended"
        name, colon, value = line.rstrip("\n").partition(": ")
        if not line.strip() and found:
            return found
        if name and colon:
            found[name] = value


def test_topic_is_streamed_and_resumed(running: Running) -> None:
    path, body = f"/topics/{running.topic}", {"records": [{"value": 1}, {"value": 2}]}
    assert request(running.address, "POST", path, body, V2 | TOKEN)[0] == 200
    response = open_stream(running, "?from=earliest")
    assert response.getheader("content-type").startswith("text/event-stream")
    first = next_event(response)
    assert json.loads(first["data"])["value"] == "1"
    assert open_stream(running).status == 503  # one at a time here
    response.close()
    again = None
    for _ in range(600):  # until the first stream's end is noticed
        again = open_stream(running, **{"last-event-id": first["id"]})
        if again.status == 200:
            break
        time.sleep(0.1)
    assert again is not None
    assert json.loads(next_event(again)["data"])["value"] == "2"
    again.close()


def test_stream_that_may_not_be_read_is_refused(running: Running) -> None:
    assert request(running.address, "GET", "/topics/other/events", headers=TOKEN)[0] == 403
    assert open_stream(running, "?from=now").status == 400
    assert open_stream(running, **{"last-event-id": "x"}).status == 400
    assert request(running.address, "GET", "/health")[0] == 200


def test_page_whose_name_resolves_to_this_machine_is_refused(millstream: SharedBroker) -> None:
    topic = millstream.unique_topic()
    table = {"listen": "127.0.0.1:0", "produce": [topic], "read": [topic]}
    with bridge_to(millstream, http=table) as bridge:
        assert bridge.http is not None
        foreign = {"host": "evil.example:80", "sec-fetch-site": "same-origin"}
        path = f"/topics/{topic}"
        assert request(bridge.http.address, "GET", f"{path}/events", None, foreign)[0] == 403
        body = {"records": [{"value": 1}]}
        assert request(bridge.http.address, "POST", path, body, V2 | foreign)[0] == 403
        assert request(bridge.http.address, "GET", "/health", None, foreign)[0] == 200
        assert request(bridge.http.address, "POST", path, body, V2)[0] == 200


def test_bodies_are_bounded_in_time_and_together(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/topics/{running.topic}"
    body = {"records": [{"value": 1}]}
    monkeypatch.setattr(app, "BODIES_BYTES_MAX", 5)
    assert request(running.address, "POST", path, body, V2 | TOKEN)[0] == 429
    monkeypatch.setattr(app, "BODIES_BYTES_MAX", 5000)
    assert request(running.address, "POST", path, body, V2 | TOKEN)[0] == 200  # nothing is left
    v3 = f"/v3/clusters/c/topics/{running.topic}/records"
    record = {"value": {"type": "STRING", "data": "x" * 100}}
    monkeypatch.setattr(app, "BODIES_BYTES_MAX", 50)
    assert request(running.address, "POST", v3, record, V3 | TOKEN)[0] == 429
    monkeypatch.setattr(app, "BODIES_BYTES_MAX", 5000)
    assert request(running.address, "POST", v3, record, V3 | TOKEN)[0] == 200
    http_server = running.bridge.http
    assert http_server is not None
    assert http_server._gateway.bodies_bytes == 0
    monkeypatch.setattr(app, "BODY_SECONDS_MAX", 0.1)
    connection = http.client.HTTPConnection(running.address, timeout=PATIENCE_SECONDS)
    connection.putrequest("POST", "/hooks/in")
    connection.putheader("content-length", "10")
    connection.endheaders(b"abc")  # and no more
    assert connection.getresponse().status == 408
    connection.close()
