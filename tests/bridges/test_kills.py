"""kill -9 of a bridge in the middle: nothing that was acknowledged is lost, and it goes on where it
was."""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import zmq
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from standardwebhooks import Webhook

from millstream.bridges.http.signatures import sign, standard_key
from millstream.bridges.mold.packets import packets_of, parse_packet, session_of
from millstream.testing.pytest_plugin import SharedBroker
from tests.bridges.conftest import PATIENCE_SECONDS, read_all, wait_for
from tests.bridges.processes import BridgeProcess, running_bridge
from tests.peers.servers import free_port

pytestmark = pytest.mark.slow

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
KILLS = 3


def posted(address: str, path: str, body: bytes, headers: dict[str, str]) -> int:
    """The status of a request, or 0 if the bridge was gone before it answered."""
    try:
        connection = http.client.HTTPConnection(address, timeout=PATIENCE_SECONDS)
        connection.request("POST", path, body, headers)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0


class Sender:
    """Repeats what was not answered, as senders of webhooks do."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self.answered: set[str] = set()
        self.unanswered: list[str] = []

    def deliver(self, address: str) -> None:
        """Deliver webhooks until the bridge is gone."""
        while True:
            with self._lock:
                message_id = self.unanswered.pop() if self.unanswered else f"{next(self._numbers)}"
            if not self.deliver_one(address, message_id):
                return

    def deliver_one(self, address: str, message_id: str) -> bool:
        now = int(time.time())
        headers = {
            "webhook-id": message_id,
            "webhook-timestamp": str(now),
            "webhook-signature": sign([standard_key(SECRET)], message_id, now, b"{}"),
        }
        is_answered = posted(address, "/hooks/in", b"{}", headers) == 204
        with self._lock:
            if is_answered:
                self.answered.add(message_id)
            else:
                self.unanswered.append(message_id)
        return is_answered


def test_answered_webhooks_are_durable_and_repeats_are_recognized(
    millstream: SharedBroker, tmp_path: Path
) -> None:
    """Each id is in the topic once, also those whose answer the kill prevented."""
    topic, sender = millstream.unique_topic(), Sender()
    tables = {
        "broker": millstream.bootstrap_servers,
        "http": {"listen": "127.0.0.1:0"},
        "hooks": {"in": {"topic": topic, "secrets": [SECRET]}},
    }
    for run in range(KILLS):
        with running_bridge(tmp_path / "edge.toml", tables) as bridge:
            address = bridge.address("http://")
            threads = [
                threading.Thread(target=sender.deliver, args=(address,), daemon=True)
                for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            goal = 100 * (run + 1)
            wait_for(lambda: len(sender.answered) > goal)  # noqa: B023 - called at once
            bridge.kill()
            for thread in threads:
                thread.join()
    with running_bridge(tmp_path / "edge.toml", tables) as bridge:
        while sender.unanswered:
            assert sender.deliver_one(bridge.address("http://"), sender.unanswered.pop())
    found = Counter(dict(it.headers())["webhook-id"].decode() for it in read_all(millstream, topic))
    assert found.keys() == sender.answered
    assert set(found.values()) == {1}


def hook_tables(millstream: SharedBroker, topic: str, *, exact: bool) -> dict[str, Any]:
    return {
        "broker": millstream.bootstrap_servers,
        "publish_status": False,
        "http": {"listen": "127.0.0.1:0"},
        "hooks": {"in": {"topic": topic, "secrets": [SECRET], "exact": exact}},
    }


def times_written(millstream: SharedBroker, topic: str) -> Counter[str]:
    return Counter(dict(it.headers())["webhook-id"].decode() for it in read_all(millstream, topic))


def test_repeat_that_reaches_another_bridge_is_recognized(
    millstream: SharedBroker, tmp_path: Path
) -> None:
    """Two bridges behind a balancer. The answers of the one that is killed got lost, so everything
    is repeated, to the other one and to its successor."""
    topic, sender = millstream.unique_topic(), Sender()
    tables = hook_tables(millstream, topic, exact=False)
    ids = [str(it) for it in range(200)]

    def deliver_all(bridge: BridgeProcess, wanted: list[str]) -> None:
        address = bridge.address("http://")
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(lambda it: sender.deliver_one(address, it), wanted))

    with running_bridge(tmp_path / "b.toml", tables) as other:
        deliver_all(other, ids[:10])
        with running_bridge(tmp_path / "a.toml", tables) as killed:
            deliver_all(killed, ids[5:100])
            deliver_all(other, ids[90:150])
            deliver_all(killed, ids[140:])
            killed.kill()
        deliver_all(other, ids)
        with running_bridge(tmp_path / "a.toml", tables) as successor:
            deliver_all(successor, ids)
    assert times_written(millstream, topic) == Counter(ids)


def test_exact_hook_of_two_bridges_takes_each_id_once_at_the_same_time(
    millstream: SharedBroker, tmp_path: Path
) -> None:
    """Each webhook goes to both bridges at once, and one of them is killed with requests in
    flight."""
    topic = millstream.unique_topic()
    tables = hook_tables(millstream, topic, exact=True)
    ids, answered = itertools.count(), [Sender(), Sender()]
    with (
        running_bridge(tmp_path / "b.toml", tables) as other,
        running_bridge(tmp_path / "a.toml", tables) as killed,
        ThreadPoolExecutor(8) as pool,
    ):
        addresses = [killed.address("http://"), other.address("http://")]

        def deliver(message_id: str) -> None:
            sent = zip(answered, addresses, strict=True)
            list(pool.map(lambda it: it[0].deliver_one(it[1], message_id), sent))

        with ThreadPoolExecutor(4) as senders:
            for part in range(2):
                running = [senders.submit(deliver, str(next(ids))) for _ in range(200)]
                if part == 0:
                    wait_for(lambda: len(answered[0].answered) > 50)
                    killed.kill()
                for each in running:
                    each.result()
        assert answered[0].unanswered
        for message_id in [*answered[0].unanswered, *answered[1].unanswered]:
            assert answered[1].deliver_one(addresses[1], message_id)
    found = times_written(millstream, topic)
    assert found == Counter(map(str, range(400)))


class Shop:
    """An endpoint that verifies with the library of Standard Webhooks."""

    def __init__(self) -> None:
        self.taken: Counter[str] = Counter()
        shop = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                Webhook(SECRET).verify(body, {k.lower(): v for k, v in self.headers.items()})
                shop.taken[body.decode()] += 1
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def shop() -> Iterator[Shop]:
    made = Shop()
    yield made
    made.server.shutdown()


def test_webhooks_out_are_resumed(millstream: SharedBroker, tmp_path: Path, shop: Shop) -> None:
    """What was taken and not yet acknowledged to the broker comes again when its lock expires."""
    topic, name = millstream.unique_topic(), millstream.unique_group("hook")
    producer = Producer(millstream.client_settings())
    values = [json.dumps(it) for it in range(300)]
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0
    webhook = {
        "topics": [topic],
        "url": f"http://127.0.0.1:{shop.server.server_port}/",
        "secrets": [SECRET],
        "allow": ["127.0.0.0/8"],
        "start": "earliest",
        "backoff_seconds": 0.1,
    }
    tables = {"broker": millstream.bootstrap_servers, "webhooks": {name: webhook}}
    with running_bridge(tmp_path / "out.toml", tables) as bridge:
        wait_for(lambda: len(shop.taken) > 50)
        bridge.kill()
    assert len(shop.taken) < len(values)
    with running_bridge(tmp_path / "out.toml", tables):
        until = time.monotonic() + 2 * PATIENCE_SECONDS  # a lock lasts for a minute
        while len(shop.taken) < len(values):
            assert time.monotonic() < until, f"{len(shop.taken)} of {len(values)}"
            time.sleep(0.1)
    assert shop.taken.keys() == set(values)


def test_mold_stream_is_continued(millstream: SharedBroker, tmp_path: Path) -> None:
    """A feed whose packets come all the time, and a server that has everything: each message is in
    the topic, in order, though the bridge is killed again and again."""
    topic, listen, session = millstream.unique_topic(), free_port(), session_of("feed")
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))
    server.settimeout(0.1)
    tables = {
        "broker": millstream.bootstrap_servers,
        "mold": {
            "in": {
                "feed": {
                    "listen": f"127.0.0.1:{listen}",
                    "request": f"127.0.0.1:{server.getsockname()[1]}",
                    "topic": topic,
                }
            }
        },
    }
    sent, is_over = [0], threading.Event()

    def publish() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            while not is_over.wait(0.001):
                sent[0] += 1
                (packet,) = packets_of(session, sent[0], [b"%d" % sent[0]])
                out.sendto(packet, ("127.0.0.1", listen))

    def answer() -> None:
        while not is_over.is_set():
            try:
                data, address = server.recvfrom(2048)
            except TimeoutError:
                continue
            asked = parse_packet(data[:18] + b"\0\0")
            count = int.from_bytes(data[18:20], "big")
            messages = [b"%d" % it for it in range(asked.sequence, asked.sequence + count)]
            for packet in packets_of(session, asked.sequence, messages):
                server.sendto(packet, address)

    threads = [threading.Thread(target=publish), threading.Thread(target=answer)]
    for _ in range(KILLS):
        with running_bridge(tmp_path / "in.toml", tables) as bridge:
            for thread in threads:
                if not thread.is_alive():
                    thread.start()
            goal = sent[0] + 300
            wait_for(lambda: len(read_all(millstream, topic)) > 0 and sent[0] > goal)  # noqa: B023
            bridge.kill()
    with running_bridge(tmp_path / "in.toml", tables):
        last = sent[0]
        wait_for(lambda: int(read_all(millstream, topic)[-1].value()) > last)
    is_over.set()
    for thread in threads:
        thread.join()
    server.close()
    values = [int(it.value()) for it in read_all(millstream, topic)]
    assert values == list(range(values[0], values[-1] + 1))


def test_zeromq_group_continues_and_the_receiver_sees_another_sender(
    millstream: SharedBroker, tmp_path: Path
) -> None:
    """Records of the last second may come again, and none is left out of what was committed."""
    topic = millstream.unique_topic()
    admin = AdminClient(millstream.client_settings())
    admin.create_topics([NewTopic(topic, 1)])[topic].result(60)
    producer = Producer(millstream.client_settings() | {"linger.ms": 0})
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    into = context.socket(zmq.PULL)
    into.setsockopt(zmq.RCVTIMEO, int(PATIENCE_SECONDS * 1000))
    port = into.bind_to_random_port("tcp://127.0.0.1")
    out = {"type": "push", "connect": [f"tcp://127.0.0.1:{port}"], "topic": topic}
    out |= {"start": "earliest"}
    tables = {"broker": millstream.bootstrap_servers, "zeromq": {"out": {topic: out}}}
    senders: set[bytes] = set()
    values: list[int] = []

    def receive(last: int) -> None:
        while not values or values[-1] < last:
            frames = into.recv_multipart()
            senders.add(frames[0][5:21])
            if len(frames) == 3:
                values.append(int(frames[2]))

    for run in range(KILLS):
        with running_bridge(tmp_path / "out.toml", tables) as bridge:
            for number in range(run * 100, (run + 1) * 100):
                producer.produce(topic, b"%d" % number, partition=0)
            assert producer.flush(60) == 0
            receive(run * 100 + 99)
            bridge.kill()
    context.destroy(0)
    assert set(values) == set(range(KILLS * 100))
    assert len(senders) == KILLS
