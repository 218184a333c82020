"""Fuzz of what comes before a user is known: TLS, SASL handshakes and tokens.

Whatever comes and in whatever order: nobody is served who has not proved who he is, the server
answers or hangs up, logs no traceback, serves its neighbours, and its memory stays bounded.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from tests.faults.test_fuzz import damaged
from tests.peers.patience import wait_until
from tests.peers.secured import Secured, SecuredWire, password_of, start_secured
from tests.peers.wire import ConnectionEnded, frame, request_frame

EXAMPLES = 60
QUICK = settings(
    max_examples=EXAMPLES,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    deadline=None,
)
SILENCE_SECONDS_MAX = 30
SETTINGS = {"millstream.authentication.timeout.ms": "5000"}
RIGHT = f"\0alice\0{password_of('alice')}".encode()
MEMORY_BYTES_MAX = 48 * 1024 * 1024  # that may be added by hundreds of strangers


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("fuzz")
    running = start_secured("millstream", directory, ["alice"], SETTINGS)
    running.add_scram_user("sam")
    yield running
    running.stop()
    log = (directory / "data.log").read_text()
    assert "Traceback" not in log
    assert password_of("alice") not in log
    assert password_of("sam") not in log


@pytest.fixture(autouse=True)
def neighbour(secured: Secured) -> Iterator[SecuredWire]:
    """Somebody who is known, served before the trouble and after it."""
    with secured.wire("alice") as wire:
        assert is_served(wire)
        yield wire
        assert is_served(wire)
    with secured.wire("alice") as wire:
        assert is_served(wire)


def is_served(wire: SecuredWire) -> bool:
    return bool(wire.call("metadata", 12, topics=()).brokers)


def answers(wire: SecuredWire, content: bytes) -> bytes:
    """All that the server says to these bytes, until it hangs up."""
    said = b""
    with suppress(ConnectionError, ssl.SSLError):
        wire.send(content)
        with suppress(OSError):
            wire.socket.shutdown(socket.SHUT_WR)
        while chunk := wire.socket.recv(65536):
            said += chunk
    return said


def a_door(secured: Secured) -> SecuredWire:
    return secured.stranger(timeout_seconds=SILENCE_SECONDS_MAX)


# Steps of a conversation: what is sent, and whether it is the one right token.
HANDSHAKES = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "MAGIC", ""]
TOKENS = [
    RIGHT,
    b"\0alice\0wrong",
    b"",
    b"n,,n=sam,r=abc",
    b"n,,n=nobody,r=abc",
    b"c=biws,r=abc,p=AAAA",
    b"n,,\x01auth=Bearer x.y.z\x01\x01",
]
step = st.one_of(
    st.tuples(st.just("handshake"), st.sampled_from(HANDSHAKES)),
    st.tuples(st.just("token"), st.sampled_from(TOKENS) | st.binary(max_size=60)),
    st.tuples(st.just("versions"), st.just("")),
    st.tuples(st.just("metadata"), st.just("")),
)


@QUICK
@example(steps=[("handshake", "PLAIN"), ("token", RIGHT), ("metadata", "")])
@example(steps=[("handshake", "SCRAM-SHA-256"), ("token", RIGHT), ("metadata", "")])
@example(steps=[("metadata", "")])
@given(steps=st.lists(step, min_size=1, max_size=6))
def test_metadata_is_only_for_who_gave_the_right_token(
    secured: Secured, steps: list[tuple[str, bytes | str]]
) -> None:
    """The right token counts after a handshake for PLAIN, and nothing else does."""
    is_plain = is_known = False
    with a_door(secured) as wire:
        for kind, value in steps:
            try:
                if kind == "handshake":
                    wire.call("sasl_handshake", 1, mechanism=value)
                    is_plain = value == "PLAIN"
                elif kind == "token":
                    answer = wire.call("sasl_authenticate", 2, auth_bytes=value)
                    came_in = answer.error_code == 0 and is_plain and not is_known
                    assert came_in == (value == RIGHT and is_plain and not is_known)
                    is_known = is_known or came_in
                elif kind == "versions":
                    wire.call("api_versions", 0)
                else:
                    found = wire.call("metadata", 12, topics=())
                    assert is_known or not found.brokers
            except (ConnectionEnded, ConnectionError):
                assert not is_known
                return


@QUICK
@given(data=st.data())
def test_damaged_frames_of_sasl(secured: Secured, data: st.DataObject) -> None:
    valid = [
        request_frame("sasl_handshake", 1, mechanism="SCRAM-SHA-256")[4:],
        request_frame("sasl_authenticate", 2, auth_bytes=b"n,,n=sam,r=abc")[4:],
        request_frame("sasl_authenticate", 1, auth_bytes=b"c=biws,r=abc,p=AAAA")[4:],
    ]
    sent = b"".join(frame(data.draw(damaged(content))) for content in valid)
    sent += request_frame("metadata", 12, topics=())
    with a_door(secured) as wire:
        said = answers(wire, sent)
    assert secured.address("SASL_PLAINTEXT").encode() not in said
    assert len(said) < 1000


@QUICK
@given(noise=st.binary(max_size=400), listener=st.sampled_from(["SSL", "SASL_SSL"]))
@example(noise=b"", listener="SSL")
@example(noise=b"\x16\x03\x01\xff\xff" + b"\x00" * 200, listener="SSL")
@example(noise=b"GET / HTTP/1.1\r\n\r\n", listener="SASL_SSL")
def test_noise_instead_of_tls(secured: Secured, noise: bytes, listener: str) -> None:
    with secured.stranger(listener, timeout_seconds=SILENCE_SECONDS_MAX) as wire:
        assert len(answers(wire, noise)) < 100  # an alert at most


@QUICK
@given(data=st.data())
def test_damaged_client_hello(secured: Secured, data: st.DataObject) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = secured.certificates.client_context()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1").do_handshake()
    hello = data.draw(damaged(outgoing.read()))
    with secured.stranger("SASL_SSL", timeout_seconds=SILENCE_SECONDS_MAX) as wire:
        answers(wire, hello)


@QUICK
@given(noise=st.binary(min_size=1, max_size=200))
def test_noise_within_tls(secured: Secured, noise: bytes) -> None:
    """The handshake of TLS is right, what follows is not: a frame, or what is taken for one."""
    with secured.stranger("SASL_SSL", timeout_seconds=SILENCE_SECONDS_MAX) as wire:
        wire.start_tls(secured.certificates.client_context())
        with suppress(ConnectionError, ssl.SSLError):
            wire.send(frame(noise))
            assert wire.is_closed()


@pytest.mark.parametrize("size", [-1, 524_289, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("after", [[], ["handshake"]])
def test_lengths_beyond_the_limit_before_authentication(
    secured: Secured, size: int, after: list[str]
) -> None:
    with a_door(secured) as wire:
        if after:
            wire.handshake("PLAIN")
        wire.send(struct.pack(">i", size))
        assert wire.is_closed()


def memory_bytes(secured: Secured) -> int:
    return int(psutil.Process(secured.server.process.pid).memory_info().rss)


@pytest.mark.slow
def test_hundreds_of_half_open_connections(secured: Secured, neighbour: SecuredWire) -> None:
    """Each says a little and waits. Others are served, memory is bounded, and they are put out."""
    before = memory_bytes(secured)
    parts = {
        "SASL_PLAINTEXT": struct.pack(">i", 500_000) + b"\0\x11",  # that much is to come
        "SASL_SSL": b"\x16\x03\x01\x02",
        "SSL": b"",
    }
    with ExitStack() as stack:
        strangers = []
        for number in range(450):
            listener = list(parts)[number % len(parts)]
            stranger = stack.enter_context(secured.stranger(listener))
            stranger.send(parts[listener])
            strangers.append(stranger.socket)
        assert is_served(neighbour)
        with secured.wire("alice") as another:
            assert is_served(another)
        assert memory_bytes(secured) - before < MEMORY_BYTES_MAX
        for stranger_socket in strangers:
            with suppress(ConnectionResetError):
                while stranger_socket.recv(1000):
                    pass
    assert is_served(neighbour)


@pytest.mark.slow
def test_slow_token_is_cut_off(secured: Secured, neighbour: SecuredWire) -> None:
    """A byte now and then does not keep the door open."""
    content = request_frame("sasl_handshake", 1, mechanism="PLAIN")
    with a_door(secured) as wire:
        deadline = time.monotonic() + 60
        with suppress(ConnectionError):
            for byte in content[:-1] + b"".join([b"\0"] * 10_000):
                wire.send(bytes([byte]))
                time.sleep(0.3)
                assert time.monotonic() < deadline
        assert is_served(neighbour)


@pytest.mark.slow
def test_memory_after_many_failures(secured: Secured) -> None:
    """Large tokens, and names of users nobody has, leave nothing behind."""

    def fail(count: int) -> None:
        for number in range(count):
            with a_door(secured) as wire, suppress(ConnectionEnded, ConnectionError):
                wire.handshake("SCRAM-SHA-256")
                said = f"n,,n=user{number}{'x' * 100_000},r=abc".encode()
                wire.call("sasl_authenticate", 2, auth_bytes=said)

    fail(50)
    before = memory_bytes(secured)
    fail(400)
    wait_until(lambda: memory_bytes(secured) - before < MEMORY_BYTES_MAX // 4)


def test_log_of_strangers_is_one_line_each(secured: Secured) -> None:
    """What strangers call themselves does not forge lines of the log."""
    forged = "mallory\n2026-01-01 INFO all is well\r\n\x1b[2J"
    with (
        secured.stranger(client_id=forged) as wire,
        suppress(ConnectionEnded, ConnectionError),
    ):
        wire.handshake("PLAIN")
        wire.call("sasl_authenticate", 2, auth_bytes=f"\0{forged}\0x".encode())
    with secured.stranger(client_id=forged) as wire:
        wire.start("sasl_handshake", 1, mechanism=forged)
        with suppress(ConnectionEnded, ConnectionError):
            wire.receive("sasl_handshake", 1)
    with secured.wire("alice", client_id=forged) as wire:
        wire.call("create_topics", 7, topics=({"name": forged, "num_partitions": 1},))
    log = Path(secured.server.data.with_name("data.log")).read_text()
    assert "\n2026-01-01 INFO all is well" not in log
    assert "\x1b" not in log
