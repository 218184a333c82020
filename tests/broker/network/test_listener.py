"""Listeners: which connections they accept, and TLS handshakes that go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from millstream import Broker
from millstream.broker.network.listener import CreationRate, Listener
from millstream.config.broker import Endpoint
from millstream.errors import MillstreamError
from tests.broker.pki import Pki, make_pki
from tests.broker.serving import serving
from tests.peers.patience import wait_until
from tests.peers.wire import Wire, request_frame

PATIENCE_SECONDS = 60


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return make_pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def tls_broker(pki: Pki) -> Iterator[Broker]:
    with Broker.start(config={"listeners": "SSL://127.0.0.1:0", **pki.settings}) as broker:
        yield broker


def address_of(broker: Broker) -> tuple[str, int]:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return host, int(port)


def closed_by_broker(connection: socket.socket) -> bytes:
    """What it sends before it closes."""
    connection.settimeout(PATIENCE_SECONDS)
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while more := connection.recv(4096):
            received += more
    return received


def exchange_records(settings: dict[str, str], topic: str, count: int = 500) -> None:
    producer = Producer({**settings, "linger.ms": 5})
    for number in range(count):
        producer.produce(topic, str(number).encode() * 50)
    assert producer.flush(PATIENCE_SECONDS) == 0
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(values) < count and time.monotonic() < deadline:
        values += [message.value() for message in consumer.consume(count, 1.0)]
    consumer.close()
    assert sorted(values) == sorted(str(number).encode() * 50 for number in range(count))


def test_client_produces_and_consumes_over_tls(tls_broker: Broker, pki: Pki) -> None:
    settings = {"bootstrap.servers": tls_broker.bootstrap_servers, **pki.librdkafka}
    exchange_records(settings, "over-tls")


def test_long_responses_arrive_whole_over_tls(tls_broker: Broker, pki: Pki) -> None:
    """Longer than what one write and one record of TLS hold."""
    settings = {"bootstrap.servers": tls_broker.bootstrap_servers, **pki.librdkafka}
    values = [bytes([number]) * 900_000 for number in range(20)]
    producer = Producer(settings)
    for value in values:
        producer.produce("long", value, partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    consumer = Consumer(
        {
            **settings,
            "group.id": "long",
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 20_000_000,
        }
    )
    consumer.subscribe(["long"])
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < len(values) and time.monotonic() < deadline:
        found += [message.value() for message in consumer.consume(20, 1.0)]
    consumer.close()
    assert found == values


def test_slow_reader_gets_everything_over_tls(tls_broker: Broker, pki: Pki) -> None:
    """The broker pauses while the client does not read, and goes on when it does."""
    host, port = address_of(tls_broker)
    body = request_frame("api_versions", 0)
    count = 4000
    with (
        socket.create_connection((host, port)) as raw,
        pki.client_context().wrap_socket(raw, server_hostname=host) as connection,
    ):
        connection.settimeout(PATIENCE_SECONDS)
        connection.sendall(body)
        one = len(connection.recv(65536))
        requests = memoryview(body * count)
        connection.setblocking(False)
        with contextlib.suppress(ssl.SSLWantWriteError):  # the broker reads no more
            while requests:
                requests = requests[connection.send(requests[:8192]) :]
        received = 0
        deadline = time.monotonic() + PATIENCE_SECONDS
        while received < count * one and time.monotonic() < deadline:
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                received += len(connection.recv(65536))
                continue
            if requests:
                with contextlib.suppress(ssl.SSLWantWriteError):
                    requests = requests[connection.send(requests[:8192]) :]
        assert received == count * one


@pytest.mark.parametrize(
    "sent", [request_frame("api_versions", 0), b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100]
)
def test_plain_bytes_on_a_tls_port_are_refused_with_one_line(
    tls_broker: Broker, pki: Pki, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "millstream.connection"):
        with socket.create_connection(address_of(tls_broker)) as connection:
            connection.sendall(sent)
            closed_by_broker(connection)
        wait_until(lambda: bool(caplog.records))
    assert "TLS handshake failed: the client does not speak TLS" in caplog.text
    assert len(caplog.records) == 1


def test_peer_that_never_ends_its_handshake_is_cut(pki: Pki) -> None:
    """Nothing at all, a part of a hello, or a hello one byte at a time."""
    config = {
        "listeners": "SSL://127.0.0.1:0",
        "millstream.authentication.timeout.ms": 500,
        **pki.settings,
    }
    hello = client_hello(pki)
    with Broker.start(config=config) as broker, contextlib.ExitStack() as stack:
        silent, part, slow = (
            stack.enter_context(socket.create_connection(address_of(broker))) for _ in range(3)
        )
        part.sendall(hello[:50])
        with contextlib.suppress(ConnectionError):
            for byte in hello[:-1]:
                slow.sendall(bytes([byte]))
                time.sleep(0.02)
        for connection in (silent, part, slow):
            closed_by_broker(connection)


@pytest.mark.parametrize("shows", ["no certificate", "one of another authority"])
def test_client_learns_why_its_handshake_failed(pki: Pki, tmp_path: Path, shows: str) -> None:
    config = {"listeners": "SSL://127.0.0.1:0", "ssl.client.auth": "required", **pki.settings}
    context = pki.client_context()
    if shows != "no certificate":
        context.load_cert_chain(make_pki(tmp_path, name="other").client_store)
    with Broker.start(config=config) as broker:
        host, port = address_of(broker)
        with (
            socket.create_connection((host, port), PATIENCE_SECONDS) as raw,
            context.wrap_socket(raw, server_hostname=host) as connection,
            pytest.raises(ssl.SSLError, match=r"(?i)alert (certificate|unknown ca)"),
        ):
            connection.recv(1)


def client_hello(pki: Pki) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = pki.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_tls_on_a_plain_port_is_refused_and_explained(
    pki: Pki, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "millstream.connection"),
        Broker.start() as broker,
        socket.create_connection(address_of(broker)) as connection,
    ):
        connection.sendall(client_hello(pki))
        assert closed_by_broker(connection) == b""
        wait_until(lambda: "the client speaks TLS" in caplog.text)


def test_handshakes_count_as_connections(pki: Pki) -> None:
    config = {"listeners": "SSL://127.0.0.1:0", "max.connections.per.ip": 3, **pki.settings}
    with Broker.start(config=config) as broker, contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(socket.create_connection(address_of(broker)))
        fourth = stack.enter_context(socket.create_connection(address_of(broker)))
        assert closed_by_broker(fourth) == b""


def test_limit_of_one_address_wins_over_that_of_all() -> None:
    config = {"max.connections.per.ip": 100, "max.connections.per.ip.overrides": "127.0.0.1:1"}
    with Broker.start(config=config) as broker, Wire(broker.bootstrap_servers) as first:
        assert first.call("api_versions", 0).error_code == 0
        with Wire(broker.bootstrap_servers) as second:
            assert second.is_closed()


def test_connections_wait_when_they_come_too_fast() -> None:
    with Broker.start(config={"max.connection.creation.rate": 5}) as broker:
        began = time.monotonic()
        for _ in range(11):
            with Wire(broker.bootstrap_servers) as wire:
                assert wire.call("api_versions", 0).error_code == 0
        # Five at once, and six at five per second.
        assert time.monotonic() - began > 1.0


def test_creation_rate_is_a_bucket_of_one_second() -> None:
    now = 100.0
    rate = CreationRate(lambda: now)
    for _ in range(10):
        assert rate.wait_seconds(10) == 0
        rate.count()
    assert rate.wait_seconds(10) == pytest.approx(0.1)
    now += 0.25
    assert rate.wait_seconds(10) == 0
    now += 60
    for _ in range(10):
        assert rate.wait_seconds(10) == 0
        rate.count()
    assert rate.wait_seconds(10) > 0


def test_listener_goes_on_after_the_process_had_no_more_files(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real_accept = socket.socket.accept
    failures = iter([OSError(errno.EMFILE, os.strerror(errno.EMFILE))])

    def accept(listening: socket.socket) -> object:
        for error in failures:
            raise error
        return real_accept(listening)

    with Broker.start() as broker:
        monkeypatch.setattr(socket.socket, "accept", accept)
        with Wire(broker.bootstrap_servers) as wire:
            assert wire.call("api_versions", 0).error_code == 0
    assert "no connection can be accepted on PLAINTEXT: Too many open files" in caplog.text


def test_address_in_use_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            port = server.addresses[0][1]
            listener = Listener(server.connections, Endpoint("OTHER", "127.0.0.1", port))
            with pytest.raises(MillstreamError, match=rf"127\.0\.0\.1:{port} \(OTHER\)"):
                await listener.bind()

    asyncio.run(scenario())


def test_every_interface_has_one_port_in_all_families(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            listener = Listener(server.connections, Endpoint("ANY", "", 0))
            await listener.bind()
            listener.start()
            for host in ("127.0.0.1", *(["::1"] if socket.has_ipv6 else [])):
                _, writer = await asyncio.open_connection(host, listener.port)
                writer.close()
            listener.close()

    asyncio.run(scenario())
