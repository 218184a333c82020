"""SCRAM: the RFC's examples, and kafka-python's client against our server."""

from __future__ import annotations

import base64
import contextlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.net.sasl.scram import ScramClient

from millstream.security.exchange import AuthenticationFailed
from millstream.security.principal import Principal
from millstream.security.scram import (
    BY_NAME,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    ScramCredential,
    ScramCredentials,
    ScramExchange,
    ScramMechanism,
    new_salt,
    salt_password,
    unknown_credential,
)
from tests.drawing import draws

SECRET = b"of this cluster"
MECHANISMS = pytest.mark.parametrize("mechanism", BY_NAME.values(), ids=list(BY_NAME))
ALICE = {
    ("alice", it.code): ScramCredential.of_password(it, "wonderland") for it in BY_NAME.values()
}


def begin(
    credentials: ScramCredentials = ALICE, mechanism: ScramMechanism = SCRAM_SHA_256
) -> ScramExchange:
    return ScramExchange(mechanism, credentials, SECRET)


def log_in(exchange: ScramExchange, user: str, password: str, mechanism: str) -> None:
    client = ScramClient(user, password, mechanism)
    client.process_server_first_message(exchange.respond(client.first_message()))
    client.process_server_final_message(exchange.respond(client.final_message()))


def test_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = salt_password(SCRAM_SHA_256, "pencil", salt, 4096)
    credential = ScramCredential.of_salted_password(SCRAM_SHA_256, salted, salt, 4096)
    exchange = ScramExchange(
        SCRAM_SHA_256,
        {("user", 1): credential},
        SECRET,
        new_nonce=lambda: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
    )
    assert exchange.respond(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert not exchange.is_complete
    assert exchange.principal is None
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert exchange.respond(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert exchange.is_complete
    assert exchange.principal == Principal("User", "user")
    assert exchange.expires_at_ms is None


NAMES = st.text(st.characters(exclude_characters=",=", exclude_categories=("Cs",)), min_size=1)
PASSWORDS = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


@MECHANISMS
@settings(max_examples=15, deadline=None)
@given(user=NAMES, password=PASSWORDS)
def test_kafka_python_logs_in(mechanism: ScramMechanism, user: str, password: str) -> None:
    credential = ScramCredential.of_password(mechanism, password)
    exchange = begin({(user, mechanism.code): credential}, mechanism)
    log_in(exchange, user, password, mechanism.name)  # it also checks the server's signature
    assert exchange.principal == Principal("User", user)


@MECHANISMS
def test_wrong_password_and_unknown_user_get_the_same_answer(mechanism: ScramMechanism) -> None:
    answers = []
    for user, password in (("alice", "looking-glass"), ("nobody", "wonderland")):
        exchange = begin(mechanism=mechanism)
        with pytest.raises(AuthenticationFailed) as failed:
            log_in(exchange, user, password, mechanism.name)
        assert not exchange.is_complete
        assert exchange.principal is None
        assert failed.value.user == user
        answers.append(failed.value.message)
    assert answers[0] == answers[1]
    assert mechanism.name in answers[0]


def test_only_the_proof_is_a_guess() -> None:
    exchange = ScramExchange(SCRAM_SHA_256, {}, SECRET)
    first = b"n,,n=bob,r=abc"
    assert exchange.guess_at(first) is None
    exchange.respond(first)
    assert exchange.guess_at(b"whatever") == "bob"


def test_credential_of_one_mechanism_is_not_the_others() -> None:
    only_256 = {("alice", 1): ScramCredential.of_password(SCRAM_SHA_256, "wonderland")}
    with pytest.raises(AuthenticationFailed):
        log_in(begin(only_256, SCRAM_SHA_512), "alice", "wonderland", "SCRAM-SHA-512")


def salt_seen(exchange: ScramExchange, user: str) -> bytes:
    return exchange.respond(f"n,,n={user},r=abc".encode()).split(b",s=")[1]


def test_unknown_user_always_has_the_same_salt() -> None:
    """Or asking twice would tell who does not exist."""
    first, second = salt_seen(begin(), "nobody"), salt_seen(begin(), "nobody")
    assert first == second
    assert first != salt_seen(begin(), "somebody")
    assert first != salt_seen(begin(mechanism=SCRAM_SHA_512), "nobody")
    assert first != ScramExchange(SCRAM_SHA_256, {}, b"of another").respond(b"n,,n=nobody,r=abc")


def test_made_up_salt_looks_like_a_real_one() -> None:
    """Both are what Java writes: 130 random bits in base 36, mostly 25 or 26 characters."""
    names = [f"user-{index}" for index in range(500)]
    made_up = [unknown_credential(SCRAM_SHA_256, name, SECRET).salt for name in names]
    for salts in (made_up, [new_salt() for _ in names]):
        assert all(0 <= int(salt, 36) < 1 << 130 for salt in salts)
        assert all(salt == salt.lower() for salt in salts)
        assert not any(salt.startswith(b"0") for salt in salts)
        longest = [salt for salt in salts if len(salt) == 26]
        assert 100 < len(longest) < 300  # 41 %
        assert all(salt.startswith(b"1") for salt in longest)


def test_escaped_name() -> None:
    credential = ScramCredential.of_password(SCRAM_SHA_256, "p")
    exchange = begin({("a=b,c", 1): credential})
    log_in(exchange, "a=3Db=2Cc", "p", "SCRAM-SHA-256")
    assert exchange.principal == Principal("User", "a=b,c")


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"\xff\xfe",
        b"n,,",
        b"n,,n=alice",
        b"n,,n=,r=abc",
        b"n,,r=abc,n=alice",
        b"n=alice,r=abc",
        b"x,,n=alice,r=abc",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,,m=must,n=alice,r=abc",
        b"n,a=bob,n=alice,r=abc",
        b"n,,n=al=ice,r=abc",
        b"n,,n=al=2cice,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=alice,r=a\x00b",
        b"n,,n=alice,r=abc,tokenauth=true",
        b"n,,n=alice,r=abc,tokenauth=TRUE",
        b"n,,n=alice,r=abc,x",
    ],
)
def test_first_message_is_refused(token: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        begin().respond(token)


@pytest.mark.parametrize("token", [b"n,a=alice,n=alice,r=a", b"y,,n=alice,r=a", b"n,,n=a,r=b,x=y"])
def test_first_message_is_accepted(token: bytes) -> None:
    assert begin().respond(token).startswith(b"r=")


def right_final(exchange: ScramExchange) -> bytes:
    client = ScramClient("alice", "wonderland", "SCRAM-SHA-256")
    client.process_server_first_message(exchange.respond(client.first_message()))
    final: bytes = client.final_message()
    return final


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"c=biws", b"c=eSws"),  # y,, instead of n,,
        (b",r=", b",r=x"),
        (b",p=", b",p=AAAA"),
        (b",p=", b",p=!"),
        (b",p=", b",x=y,q="),
        (b"c=", b"d="),
    ],
)
def test_final_message_is_refused(old: bytes, new: bytes) -> None:
    exchange = begin()
    with pytest.raises(AuthenticationFailed):
        exchange.respond(right_final(exchange).replace(old, new, 1))
    assert not exchange.is_complete


@pytest.mark.parametrize(("nonce", "binding"), [("abc", "biws"), (None, "eSws")])
def test_what_is_signed_must_be_what_was_sent(nonce: str | None, binding: str) -> None:
    """A right proof, over another nonce or binding."""
    exchange = begin()
    client = ScramClient("alice", "wonderland", "SCRAM-SHA-256")
    server_first = exchange.respond(client.first_message())
    client.process_server_first_message(server_first)
    final = f"c={binding},r={nonce or client.nonce.decode()}".encode()
    bare = client.first_message().removeprefix(b"n,,").split(b",r=")[0]
    first_nonce = client.auth_message.split(b",r=")[1].split(b",")[0]
    signed = bare + b",r=" + first_nonce + b"," + server_first + b"," + final
    signature = hmac.digest(client.stored_key, signed, "sha256")
    proof = bytes(a ^ b for a, b in zip(client.client_key, signature, strict=True))
    with pytest.raises(AuthenticationFailed, match=r"another (nonce|channel binding)"):
        exchange.respond(final + b",p=" + base64.b64encode(proof))


def test_proof_cannot_be_used_twice() -> None:
    exchange = begin()
    final = right_final(exchange)
    exchange.respond(final)
    with pytest.raises(AuthenticationFailed):
        exchange.respond(final)
    replayed = begin()
    replayed.respond(b"n,,n=alice,r=abc")
    with pytest.raises(AuthenticationFailed):
        replayed.respond(final)


@settings(max_examples=draws(200), deadline=None)
@given(tokens=st.lists(st.binary(max_size=60) | st.from_regex(rb"[nyp]=?,.*r=.*"), max_size=3))
def test_any_other_bytes_fail_cleanly(tokens: list[bytes]) -> None:
    exchange = begin()
    with contextlib.suppress(AuthenticationFailed):
        for token in tokens:
            exchange.respond(token)
    assert not exchange.is_complete


def test_repr_shows_no_keys() -> None:
    credential = ScramCredential.of_password(SCRAM_SHA_256, "wonderland")
    assert repr(credential) == "ScramCredential(iterations=4096)"


def test_unknown_user_costs_as_much_as_a_wrong_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the time to the answer would tell who exists."""
    real, counted = hmac.digest, []

    def digest(key: bytes, message: bytes, name: str) -> bytes:
        counted.append(name)
        return real(key, message, name)

    monkeypatch.setattr(hmac, "digest", digest)
    work = []
    for user in ("alice", "nobody"):
        exchange = begin()
        client = ScramClient(user, "wrong", "SCRAM-SHA-256")
        counted.clear()
        client.process_server_first_message(exchange.respond(client.first_message()))
        with pytest.raises(AuthenticationFailed):
            exchange.respond(client.final_message())
        work.append(list(counted))
    assert work[0] == work[1]
    assert len(work[0]) >= 3
