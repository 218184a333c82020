"""A connection against a broker, and against peers that break the protocol."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from millstream.client.connection import Connection, ConnectionLost
from millstream.errors import ApiError, ProtocolError
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import Server, start_millstream


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start_millstream(tmp_path_factory.mktemp("connection") / "data")
    yield running
    running.stop()


def connect(server: Server) -> Connection:
    return Connection((server.host, server.port), timeout_seconds=PATIENCE_SECONDS)


def test_connection_answers_requests_in_flight_in_their_order(server: Server) -> None:
    with connect(server) as connection:
        version = connection.version_for("metadata")
        for _ in range(3):
            connection.send_fields("metadata", version, {"topics": None})
        connection.send_fields("list_groups", 4, {"states_filter": []})
        answers = [connection.receive() for _ in range(4)]
    assert [type(answer).__name__ for answer in answers] == [
        *["MetadataResponse"] * 3,
        "ListGroupsResponse",
    ]


def test_connection_knows_the_brokers_versions_and_features(server: Server) -> None:
    with connect(server) as connection:
        assert connection.features["transaction.version"] == 2
        assert connection.version_for("end_txn", newest=3) == 3
        connection.versions[26] = (7, 9)
        with pytest.raises(ApiError, match="supports 7 and later, this client up to 5"):
            connection.version_for("end_txn")
        del connection.versions[26]
        with pytest.raises(ApiError, match="does not support end_txn"):
            connection.version_for("end_txn")


def answering(*frames: bytes) -> tuple[str, int]:
    """A server that sends these frames, whatever it is asked, and closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        accepted, _ = listener.accept()
        with accepted, listener:
            accepted.recv(4096)
            for frame in frames:
                accepted.sendall(frame)

    threading.Thread(target=serve, daemon=True).start()
    host, port = listener.getsockname()
    return host, port


def test_connection_says_that_the_broker_closed_it() -> None:
    with pytest.raises(ConnectionLost, match="closed the connection"):
        Connection(answering(struct.pack(">i", 100) + b"short"), timeout_seconds=PATIENCE_SECONDS)


def test_connection_refuses_an_answer_to_another_request() -> None:
    with pytest.raises(ProtocolError, match="answered request 77, not 1"):
        Connection(answering(struct.pack(">ii", 4, 77)), timeout_seconds=PATIENCE_SECONDS)
    with pytest.raises(ProtocolError, match="a response of -3 bytes"):
        Connection(answering(struct.pack(">i", -3)), timeout_seconds=PATIENCE_SECONDS)
