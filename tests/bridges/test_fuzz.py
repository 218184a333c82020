"""Any bytes into every bridge: bad ones are counted, nothing fails, and good ones still pass."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import time

import zmq

from millstream.bridges.http.signatures import sign, standard_key
from millstream.bridges.mold.packets import packets_of, session_of
from millstream.bridges.running import Bridge
from millstream.testing.pytest_plugin import SharedBroker
from tests.bridges.conftest import PATIENCE_SECONDS, bridge_to, read_all, request, wait_for
from tests.peers.servers import free_port

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NUMBER = 300
SESSION = session_of("fuzz")


def damaged(dice: random.Random, good: bytes) -> bytes:
    """Bytes at random, or something good with a few bytes changed, cut, or with more of them."""
    kind = dice.randrange(4)
    if kind == 0 or not good:
        return dice.randbytes(dice.randrange(200))
    data = bytearray(good)
    if kind == 1:
        for _ in range(dice.randrange(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
    elif kind == 2:
        del data[dice.randrange(len(data)) :]
    else:
        at = dice.randrange(len(data))
        data[at:at] = dice.randbytes(dice.randrange(1, 50))
    return bytes(data)


def send_udp(port: int, packets: list[bytes]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        for packet in packets:
            out.sendto(packet, ("127.0.0.1", port))


def has_failed(bridge: Bridge) -> bool:
    return bridge.counts.of("failures") > 0 or bool(bridge.problems())


def test_bytes_at_random_over_udp_harm_nothing(millstream: SharedBroker) -> None:
    metrics, prices, port = millstream.unique_topic(), millstream.unique_topic(), free_port()
    with bridge_to(
        millstream,
        statsd={"app": {"listen": "127.0.0.1:0", "topic": metrics, "interval_seconds": 3600}},
        mold={"in": {"a": {"listen": f"127.0.0.1:{port}", "topic": prices}}},
    ) as bridge:
        dice = random.Random(1)
        statsd = int(bridge.receivers[0].address.rpartition(":")[2])
        lines = b"hits:1|c|@0.5|#a:b,c\nload:-5|g\nt:1:2:3|ms\nu:x|s"
        send_udp(statsd, [damaged(dice, lines) for _ in range(NUMBER)])
        send_udp(statsd, [b"good:7|c"])
        (good,) = packets_of(SESSION, 1, [b"first", b"second"])
        # Of the same session: sequences at random would be gaps that are given up much later.
        noise = [damaged(dice, good) for _ in range(NUMBER)]
        send_udp(port, [it for it in noise if it[:10] != SESSION])
        send_udp(port, [good])
        wait_for(lambda: bridge.counts.of("statsd_packets") == NUMBER + 1)
        wait_for(lambda: any(it.value() == b"second" for it in read_all(millstream, prices)))
        assert bridge.counts.of("statsd_bad_lines") > 0
        assert bridge.counts.of("mold_bad_packets") > 0
        assert not has_failed(bridge)
    found = [json.loads(it.value()) for it in read_all(millstream, metrics)]
    assert [it["value"] for it in found if it["name"] == "good"] == [7.0]


def test_requests_at_random_get_no_answer_from_the_log(millstream: SharedBroker) -> None:
    topic, port = millstream.unique_topic(), free_port()
    out = {"topic": topic, "to": f"127.0.0.1:{free_port()}", "requests": f"127.0.0.1:{port}"}
    with bridge_to(millstream, mold={"out": {"a": out}}) as bridge:
        dice = random.Random(2)
        send_udp(
            port, [dice.randbytes(dice.choice([0, 1, 19, 20, 21, 2000])) for _ in range(NUMBER)]
        )
        wait_for(lambda: bridge.counts.of("mold_bad_packets") > 0)
        assert not has_failed(bridge)


def test_frames_at_random_harm_nothing(millstream: SharedBroker) -> None:
    topic = millstream.unique_topic()
    into = {"type": "pull", "bind": ["tcp://127.0.0.1:*"], "topic": topic}
    with bridge_to(millstream, zeromq={"in": {"a": into}}) as bridge:
        dice = random.Random(3)
        address = bridge.zeromq_in[0].address
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as raw:
            raw.sendall(dice.randbytes(1000))  # not even ZeroMQ
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        out = context.socket(zmq.PUSH)
        out.connect(address)
        header = b"MSQ1" + bytes([3]) + bytes(24)
        for _ in range(NUMBER):
            frames = [damaged(dice, header) for _ in range(dice.randrange(1, 5))]
            out.send_multipart(frames)
        out.send_multipart([b"key", b"good"])
        wait_for(lambda: any(it.value() == b"good" for it in read_all(millstream, topic)))
        assert not has_failed(bridge)
        context.destroy(0)


def test_requests_at_random_over_http_are_refused_or_written(millstream: SharedBroker) -> None:
    """No status of 500, and each record that was acknowledged is there."""
    topic, hooked = millstream.unique_topic(), millstream.unique_topic()
    with bridge_to(
        millstream,
        http={"listen": "127.0.0.1:0", "produce": [topic], "read": [topic]},
        hooks={
            name: {"topic": hooked, "signature": name, "secrets": [SECRET]}
            for name in ("standard", "github", "stripe")
        },
    ) as bridge:
        assert bridge.http is not None
        dice, address = random.Random(4), bridge.http.address
        statuses: set[int] = set()
        for _ in range(NUMBER):
            path, headers, body = dice.choice(REQUESTS)
            given = {name: _printable(damaged(dice, value)) for name, value in headers.items()}
            given |= {k: v.decode() for k, v in headers.items() if dice.random() < 0.7}
            sent = damaged(dice, body)
            statuses.add(request(address, "POST", path.format(topic=topic), sent, given)[0])
        for _ in range(20):
            _send_raw(address, damaged(dice, b"POST /hooks/standard HTTP/1.1\r\nhost: a\r\n\r\n{}"))
        assert 500 not in statuses
        assert {400, 401, 422} & statuses
        now = int(time.time())
        signature = sign([standard_key(SECRET)], "good", now, b"{}")
        signed = {"webhook-id": "good", "webhook-timestamp": str(now)}
        signed["webhook-signature"] = signature
        assert request(address, "POST", "/hooks/standard", b"{}", signed)[0] == 204
        assert not has_failed(bridge)
        written = bridge.counts.of("records_in")
    assert len(read_all(millstream, topic)) + len(read_all(millstream, hooked)) == written


EVENT = {b"specversion": b"1.0", b"id": b"1", b"source": b"/s", b"type": b"t"}
REQUESTS: list[tuple[str, dict[str, bytes], bytes]] = [
    (
        "/topics/{topic}",
        {"content-type": b"application/vnd.kafka.json.v2+json"},
        b'{"records":[{"key":"a","value":{"n":1},"headers":[{"key":"h","value":"YQ=="}]}]}',
    ),
    (
        "/topics/{topic}",
        {"content-type": b"application/vnd.kafka.binary.v2+json"},
        b'{"records":[{"value":"YWJj","partition":0}]}',
    ),
    (
        "/v3/clusters/c/topics/{topic}/records",
        {"content-type": b"application/json"},
        b'{"key":{"type":"STRING","data":"k"},"value":{"type":"BINARY","data":"YWJj"}}',
    ),
    (
        "/events/{topic}",
        {f"ce-{name.decode()}": value for name, value in EVENT.items()},
        b"payload",
    ),
    (
        "/events/{topic}",
        {"content-type": b"application/cloudevents+json"},
        b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"a":1}}',
    ),
    (
        "/hooks/standard",
        {"webhook-id": b"a", "webhook-timestamp": b"1700000000", "webhook-signature": b"v1,YQ=="},
        b"{}",
    ),
    ("/hooks/github", {"x-hub-signature-256": b"sha256=00", "x-github-delivery": b"d"}, b"{}"),
    ("/hooks/stripe", {"stripe-signature": b"t=1700000000,v1=00"}, b'{"id":"evt_1"}'),
]


def _printable(data: bytes) -> str:
    """A value that the client library sends."""
    return "".join(chr(it) for it in data if 32 <= it < 127 or it > 160).strip()


def _send_raw(address: str, data: bytes) -> None:
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), PATIENCE_SECONDS) as raw:
        raw.sendall(data)
        raw.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError, http.client.HTTPException):
            while raw.recv(4096):
                pass
