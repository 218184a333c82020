"""Each bridge once with Apache Kafka."""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

import pytest
import zmq
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from standardwebhooks import Webhook

from millstream.bridges.http.conditions import prepare_topic
from millstream.bridges.http.signatures import sign, standard_key
from millstream.bridges.mold.packets import packets_of, session_of
from millstream.errors import ConfigError
from tests.bridges.conftest import bridge_to, read_all, read_records, request, wait_for
from tests.peers.cache import PeerMissing
from tests.peers.kafka import start_kafka
from tests.peers.servers import free_port

pytestmark = [pytest.mark.slow, pytest.mark.java]

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
JSON = {"content-type": "application/json"}


class Kafka:
    """A running broker, and names that no other test uses."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.settings = {"bootstrap.servers": bootstrap_servers}
        self._numbers = count()

    def topic(self) -> str:
        name = f"topic-{next(self._numbers)}"
        admin = AdminClient(self.settings)
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(60)
        return name

    def write(self, topic: str, *values: bytes) -> None:
        producer = Producer(self.settings)
        for value in values:
            producer.produce(topic, value, b"k")
        assert producer.flush(60) == 0


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    try:
        server = start_kafka(
            tmp_path_factory.mktemp("kafka"), {"group.initial.rebalance.delay.ms": "0"}
        )
    except PeerMissing as missing:
        pytest.skip(str(missing))
    yield Kafka(server.bootstrap)
    server.stop()


def test_http_produces_streams_and_takes_webhooks_once(kafka: Kafka) -> None:
    topic, hooked = kafka.topic(), kafka.topic()
    now = int(time.time())
    signed = {
        "webhook-id": "a",
        "webhook-timestamp": str(now),
        "webhook-signature": sign([standard_key(SECRET)], "a", now, b"{}"),
    }
    for _ in range(2):  # the second run finds the id in the topic
        with bridge_to(
            kafka,
            http={"listen": "127.0.0.1:0", "produce": [topic], "read": [topic]},
            hooks={"in": {"topic": hooked, "secrets": [SECRET]}},
        ) as bridge:
            assert bridge.http is not None
            address = bridge.http.address
            body = {"records": [{"key": "a", "value": 1}]}
            assert request(address, "POST", f"/topics/{topic}", body, JSON)[0] == 200
            record = {"value": {"type": "STRING", "data": "two"}}
            path = f"/v3/clusters/c/topics/{topic}/records"
            assert request(address, "POST", path, record, JSON)[0] == 200
            event = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
            assert request(address, "POST", f"/events/{topic}", b"x", event)[0] == 204
            assert request(address, "POST", "/hooks/in", b"{}", signed)[0] == 204
            connection = http.client.HTTPConnection(address, timeout=60)
            connection.request("GET", f"/topics/{topic}/events?from=earliest")
            lines = iter(connection.getresponse().readline, b"")
            data = next(json.loads(it[6:]) for it in lines if it.startswith(b"data: "))
            assert (data["offset"], data["value"]) == (0, "1")
            connection.close()
    assert [it.value() for it in read_all(kafka, hooked)] == [b"{}"]
    assert len(read_all(kafka, topic)) == 6


def test_webhooks_go_out(kafka: Kafka) -> None:
    """The first request fails, and comes again."""
    topic, taken = kafka.topic(), list[bytes]()
    tries = count()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            Webhook(SECRET).verify(body, {k.lower(): v for k, v in self.headers.items()})
            if next(tries) == 0:
                self.send_response(503)
            else:
                taken.append(body)
                self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    kafka.write(topic, b"1", b"2", b"3")
    webhook = {
        "topics": [topic],
        "url": f"http://127.0.0.1:{server.server_port}/",
        "secrets": [SECRET],
        "allow": [str(ipaddress.ip_network("127.0.0.0/8"))],
        "start": "earliest",
    }
    with bridge_to(kafka, webhooks={topic: webhook}) as bridge:
        wait_for(lambda: {b"1", b"2", b"3"} <= set(taken))
        wait_for(lambda: bridge.counts.of("records_out") == 3)
    server.shutdown()


def test_statsd_aggregates(kafka: Kafka) -> None:
    topic = kafka.topic()
    table = {"listen": "127.0.0.1:0", "topic": topic, "interval_seconds": 3600}
    with bridge_to(kafka, statsd={"app": table}) as bridge:
        host, _, port = bridge.receivers[0].address.partition(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            for _ in range(100):
                out.sendto(b"hits:1|c", (host, int(port)))
        wait_for(lambda: bridge.counts.of("statsd_packets") == 100)
    (record,) = read_all(kafka, topic)
    assert json.loads(record.value())["value"] == 100.0


def test_mold_goes_in_and_out(kafka: Kafka) -> None:
    """Into one topic, from there into another by our own feed; a restart continues the numbers."""
    first, second = kafka.topic(), kafka.topic()
    ports = [free_port() for _ in range(3)]
    session = session_of("feed")
    with bridge_to(
        kafka,
        mold={
            "in": {
                "a": {"listen": f"127.0.0.1:{ports[0]}", "topic": first},
                "b": {
                    "listen": f"127.0.0.1:{ports[1]}",
                    "request": f"127.0.0.1:{ports[2]}",
                    "topic": second,
                },
            },
            "out": {
                "c": {
                    "topic": first,
                    "to": f"127.0.0.1:{ports[1]}",
                    "requests": f"127.0.0.1:{ports[2]}",
                    "start": "earliest",
                }
            },
        },
    ):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            for packet in packets_of(session, 1, [b"%d" % it for it in range(100)]):
                out.sendto(packet, ("127.0.0.1", ports[0]))
        found = read_records(kafka, second, 100)
    assert [it.value() for it in found] == [b"%d" % it for it in range(100)]
    with bridge_to(kafka, mold={"in": {"a": {"listen": f"127.0.0.1:{ports[0]}", "topic": first}}}):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            (packet,) = packets_of(session, 103, [b"later"])
            out.sendto(packet, ("127.0.0.1", ports[0]))
        gap, later = read_records(kafka, first, 102)[100:]
    assert json.loads(gap.value())["first"] == 101
    assert later.value() == b"later"


def test_zeromq_goes_in_and_out(kafka: Kafka) -> None:
    source, target = kafka.topic(), kafka.topic()
    kafka.write(source, b"1", b"2")
    bind = ["tcp://127.0.0.1:*"]
    with bridge_to(
        kafka,
        zeromq={
            "in": {"a": {"type": "pull", "bind": bind, "topic": target}},
            "out": {source: {"type": "push", "bind": bind, "topic": source, "start": "earliest"}},
        },
    ) as bridge:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        pipe_in, pipe_out = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        pipe_in.setsockopt(zmq.RCVTIMEO, 60_000)
        pipe_in.connect(bridge.zeromq_out[0].address)
        pipe_out.connect(bridge.zeromq_in[0].address)
        passed = 0
        while passed < 2:
            frames = pipe_in.recv_multipart()
            pipe_out.send_multipart(frames)  # what comes out of the bridge goes into it again
            passed += len(frames) == 3
        found = read_records(kafka, target, 2)
        context.destroy(0)
    assert [it.value() for it in found] == [b"1", b"2"]
    assert [dict(it.headers())["zmq-sequence"] for it in found] == [b"0", b"1"]


def test_exact_hook_is_refused(kafka: Kafka) -> None:
    with pytest.raises(ConfigError, match="which the cluster does not have: leave out exact"):
        prepare_topic(kafka.settings, "exact-hooks")
