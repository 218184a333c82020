"""Who comes in through a listener with SASL, and what those hear who do not.

Over a bare connection: what real clients make of it is in test_secured_clients.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from base64 import b64decode, b64encode
from typing import Any

import pytest

from millstream.protocol.apis import APIS
from tests.conformance.differences import DIFFERENCES
from tests.peers.patience import wait_until
from tests.peers.secured import (
    SCRAM,
    ConnectionEnded,
    SaslRefused,
    Secured,
    SecuredWire,
    password_of,
)
from tests.peers.wire import frame, request_frame

SECURED_USERS = ("alice", "bob")

UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE, SASL_AUTHENTICATION_FAILED = 33, 34, 58
MECHANISMS = {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}
FRAME_BYTES_MAX = 524_288
BEFORE_AUTHENTICATION = ("api_versions", "sasl_handshake")


@pytest.fixture
def door(secured: Secured) -> Any:
    """A connection to the listener with SASL, before anything was said."""
    with secured.stranger() as wire:
        yield wire


def is_served(wire: SecuredWire) -> bool:
    return bool(wire.call("metadata", 12, topics=()).brokers)


def test_user_comes_in_with_the_password(secured: Secured) -> None:
    with secured.wire("alice") as wire:
        assert is_served(wire)


def test_versions_are_told_before_authentication(door: SecuredWire) -> None:
    answer = door.call("api_versions", 3, client_software_name="w", client_software_version="1")
    keys = {it.api_key for it in answer.api_keys}
    assert {0, 1, 3, 17, 36} <= keys
    door.sign_in("alice")
    assert is_served(door)


@pytest.mark.parametrize(
    "api",
    [it for it in APIS.values() if it.name not in BEFORE_AUTHENTICATION],
    ids=lambda it: it.name,
)
def test_no_other_request_is_answered_before_authentication(door: SecuredWire, api: Any) -> None:
    door.send(request_frame(api.name, api.max_version))
    assert door.is_closed()


@pytest.mark.parametrize("api", ["metadata", "sasl_handshake", "api_versions", "describe_acls"])
def test_request_between_handshake_and_authentication_closes(door: SecuredWire, api: str) -> None:
    """Apache Kafka answers it with an error before that."""
    door.handshake("PLAIN")
    door.send(request_frame(api, 1))
    try:
        answer = door.receive(api, 1)
    except ConnectionEnded:
        return
    assert getattr(answer, "error_code", ILLEGAL_SASL_STATE) == ILLEGAL_SASL_STATE
    assert not getattr(answer, "brokers", ())
    assert door.is_closed()


def test_second_api_versions_closes(door: SecuredWire) -> None:
    door.call("api_versions", 0)
    door.start("api_versions", 0)
    assert door.is_closed()


def test_requests_after_a_failure_are_not_answered(door: SecuredWire) -> None:
    door.handshake("PLAIN")
    door.start("sasl_authenticate", 2, auth_bytes=b"\0alice\0wrong")
    door.start("metadata", 12, topics=None)  # sent before the answer
    assert door.receive("sasl_authenticate", 2).error_code == SASL_AUTHENTICATION_FAILED
    assert door.is_closed()


@pytest.mark.parametrize("mechanism", ["MAGIC", "plain", "", "GSSAPI", "OAUTHBEARER"])
def test_unknown_mechanism_is_answered_with_those_there_are(
    door: SecuredWire, mechanism: str
) -> None:
    with pytest.raises(SaslRefused) as refused:
        door.handshake(mechanism)
    assert refused.value.code == UNSUPPORTED_SASL_MECHANISM
    assert set((refused.value.message or "").split(",")) == MECHANISMS
    assert door.is_closed()


@pytest.mark.parametrize(
    ("user", "password"),
    [
        ("alice", "wrong"),
        ("alice", password_of("bob")),
        ("alice", password_of("alice") + "\0"),
        ("alice", password_of("alice").upper()),
        ("alice", password_of("alice")[:-1]),
        ("Alice", password_of("alice")),
        ("zoe", "wrong"),
        ("zoe", password_of("zoe")),
        ("alice\0", password_of("alice")),
        ("User:alice", password_of("alice")),
    ],
)
def test_wrong_password_and_unknown_user_hear_the_same(
    door: SecuredWire, user: str, password: str
) -> None:
    with pytest.raises(SaslRefused) as refused:
        door.sign_in(user, password)
    assert refused.value.code == SASL_AUTHENTICATION_FAILED
    assert "alice" not in str(refused.value.message)
    assert "zoe" not in str(refused.value.message)
    if "\0" not in user + password:
        assert refused.value.message == "Authentication failed: Invalid username or password"
    assert door.is_closed()


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"\0",
        b"\0\0",
        b"\0alice",
        b"\0alice\0",
        b"\0\0secret",
        b"\0\0\0",
        b"alice",
        b"\xff\xfe\0alice\0x",
        b"bob\0alice\0" + password_of("alice").encode(),
        b"\0alice\0" + b"x" * 100_000,
    ],
)
def test_malformed_token_of_plain_is_refused(door: SecuredWire, token: bytes) -> None:
    door.handshake("PLAIN")
    with pytest.raises(SaslRefused) as refused:
        door.authenticate(token)
    assert refused.value.code == SASL_AUTHENTICATION_FAILED
    assert password_of("alice") not in str(refused.value.message)
    assert door.is_closed()


def test_authorization_id_may_be_the_user(door: SecuredWire) -> None:
    door.handshake("PLAIN")
    door.authenticate(b"alice\0alice\0" + password_of("alice").encode())
    assert is_served(door)


def test_bare_tokens_after_the_first_version_of_the_handshake(door: SecuredWire) -> None:
    assert door.call("sasl_handshake", 0, mechanism="PLAIN").error_code == 0
    door.send(frame(f"\0alice\0{password_of('alice')}".encode()))
    assert door.receive_frame() == b""
    assert is_served(door)


def test_bare_token_that_is_wrong_closes(door: SecuredWire) -> None:
    assert door.call("sasl_handshake", 0, mechanism="PLAIN").error_code == 0
    door.send(frame(b"\0alice\0wrong"))
    assert door.is_closed()


def test_kafka_frame_after_the_first_version_of_the_handshake_closes(door: SecuredWire) -> None:
    assert door.call("sasl_handshake", 0, mechanism="PLAIN").error_code == 0
    token = f"\0alice\0{password_of('alice')}".encode()
    door.start("sasl_authenticate", 2, auth_bytes=token)
    assert door.is_closed()


def test_frame_over_the_limit_before_authentication_closes(door: SecuredWire) -> None:
    door.send(struct.pack(">i", FRAME_BYTES_MAX + 1))
    assert door.is_closed()


def test_authentication_without_a_handshake_closes(door: SecuredWire) -> None:
    door.start("sasl_authenticate", 2, auth_bytes=b"\0alice\0" + password_of("alice").encode())
    assert door.is_closed()


@pytest.mark.parametrize("user", [None, "alice"])
def test_sasl_where_it_is_not_expected(secured: Secured, user: str | None) -> None:
    """On a listener without SASL, and once more on one without re-authentication."""
    with secured.wire(user) as wire:
        answer = wire.call("sasl_handshake", 1, mechanism="PLAIN")
        assert answer.error_code == ILLEGAL_SASL_STATE
        answer = wire.call("sasl_authenticate", 2, auth_bytes=b"\0alice\0wrong")
        assert answer.error_code == ILLEGAL_SASL_STATE
        assert is_served(wire)


class Scram:
    """A client that computes as it likes."""

    def __init__(self, wire: SecuredWire, mechanism: str) -> None:
        self._wire = wire
        self._digest = SCRAM[mechanism][1]
        wire.handshake(mechanism)

    def first(self, user: str, nonce: str = "abc", **more: str) -> dict[str, str]:
        """The server's first message, in its parts."""
        self._nonce = nonce
        extensions = "".join(f",{name}={value}" for name, value in more.items())
        self._first = f"n={user},r={nonce}{extensions}"
        answer = self._wire.authenticate(f"n,,{self._first}".encode())
        self._server_first = bytes(answer.auth_bytes).decode()
        return dict(part.split("=", 1) for part in self._server_first.split(","))

    def last(self, password: str, nonce: str, salt: str, iterations: int) -> bytes:
        """The proof; returns the server's own."""
        salted = hashlib.pbkdf2_hmac(self._digest, password.encode(), b64decode(salt), iterations)
        client_key = hmac.digest(salted, b"Client Key", self._digest)
        stored = hashlib.new(self._digest, client_key).digest()
        without_proof = f"c=biws,r={nonce}"
        message = f"{self._first},{self._server_first},{without_proof}".encode()
        signature = hmac.digest(stored, message, self._digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._expected = hmac.digest(
            hmac.digest(salted, b"Server Key", self._digest), message, self._digest
        )
        last = f"{without_proof},p={b64encode(proof).decode()}"
        answer = self._wire.authenticate(last.encode())
        return bytes(answer.auth_bytes)

    def sign_in(self, user: str, password: str) -> None:
        said = self.first(user)
        assert said["r"].startswith(self._nonce)
        final = self.last(password, said["r"], said["s"], int(said["i"]))
        assert final == b"v=" + b64encode(self._expected)


@pytest.fixture(scope="module")
def scram_user(secured: Secured) -> str:
    secured.add_scram_user("sam")

    def comes_in() -> bool:
        try:
            with secured.stranger() as wire:
                Scram(wire, "SCRAM-SHA-512").sign_in("sam", password_of("sam"))
        except SaslRefused:
            return False
        return True

    wait_until(comes_in)  # Apache Kafka answers before it has applied it
    return "sam"


@pytest.mark.parametrize("mechanism", list(SCRAM))
def test_scram_proves_both_sides(door: SecuredWire, mechanism: str, scram_user: str) -> None:
    Scram(door, mechanism).sign_in(scram_user, password_of(scram_user))
    assert is_served(door)


@pytest.mark.parametrize("mechanism", list(SCRAM))
def test_scram_with_a_wrong_password_fails(
    door: SecuredWire, mechanism: str, scram_user: str
) -> None:
    with pytest.raises(SaslRefused) as refused:
        Scram(door, mechanism).sign_in(scram_user, "wrong")
    assert refused.value.code == SASL_AUTHENTICATION_FAILED
    assert door.is_closed()


def test_scram_with_another_nonce_fails(door: SecuredWire, scram_user: str) -> None:
    scram = Scram(door, "SCRAM-SHA-256")
    said = scram.first(scram_user)
    with pytest.raises(SaslRefused):
        scram.last(password_of(scram_user), "abcdef", said["s"], int(said["i"]))
    assert door.is_closed()


def test_scram_salt_is_not_of_another_mechanism(secured: Secured, scram_user: str) -> None:
    salts = set()
    for mechanism in SCRAM:
        with secured.stranger() as wire:
            salts.add(Scram(wire, mechanism).first(scram_user)["s"])
    assert len(salts) == len(SCRAM)


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,",
        b"n,,n=sam",
        b"n,,r=abc",
        b"n,,n=sam,r=",
        b"n,,n=,r=abc",
        b"y,,n=sam,r=abc",
        b"p=tls-unique,,n=sam,r=abc",
        b"n,a=bob,n=sam,r=abc",
        b"n,,m=ext,n=sam,r=abc",
        b"n,,n=s=zz,r=abc",
        b"\xff\xff\xff",
        b"n,,n=sam,r=a\0b",
        b"n,,n=sam,r=" + b"x" * 500_000,
    ],
)
def test_malformed_first_message_of_scram(
    secured: Secured, door: SecuredWire, scram_user: str, first: bytes
) -> None:
    """It fails at once, or at the proof: nobody comes in."""
    door.handshake("SCRAM-SHA-256")
    codes = []
    for token in (first, b"c=biws,r=abc,p=" + b64encode(b"x" * 32)):
        try:
            codes.append(int(door.call("sasl_authenticate", 2, auth_bytes=token).error_code))
        except (ConnectionEnded, ConnectionError):  # after the failure
            break
    assert codes in ([SASL_AUTHENTICATION_FAILED], [0, SASL_AUTHENTICATION_FAILED])
    assert door.is_closed()


def test_scram_of_a_user_who_is_unknown(secured: Secured, scram_user: str) -> None:
    """The messages until he is refused; a known user with a wrong password: two."""
    difference = DIFFERENCES["unknown user of SCRAM"]
    expected = difference.millstream if secured.kind == "millstream" else difference.kafka
    assert _messages_until_refused(secured, scram_user) == 2
    assert _messages_until_refused(secured, "nobody-at-all") == expected


def _messages_until_refused(secured: Secured, user: str) -> int:
    with secured.stranger() as wire:
        wire.handshake("SCRAM-SHA-256")
        first = wire.call("sasl_authenticate", 2, auth_bytes=f"n,,n={user},r=abc".encode())
        assert user not in str(first.error_message)
        if first.error_code:
            return 1
        said = dict(part.split("=", 1) for part in bytes(first.auth_bytes).decode().split(","))
        assert said["i"] == "4096"
        proof = f"c=biws,r={said['r']},p={b64encode(b'x' * 32).decode()}"
        last = wire.call("sasl_authenticate", 2, auth_bytes=proof.encode())
        assert last.error_code == SASL_AUTHENTICATION_FAILED
        assert user not in str(last.error_message)
        return 2
