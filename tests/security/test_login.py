"""The client's side of SASL: the examples of the RFCs, and servers that lie."""

from __future__ import annotations

import base64

import pytest

from millstream.errors import ConfigError
from millstream.security.exchange import AuthenticationFailed
from millstream.security.login import ScramLogin, make_login
from millstream.security.scram import (
    BY_NAME,
    SCRAM_SHA_256,
    ScramCredential,
    ScramExchange,
)

# The exchange of RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def rfc_login(password: str = "pencil") -> ScramLogin:
    return ScramLogin(SCRAM_SHA_256, "user", password, lambda: NONCE)


def test_scram_says_what_the_rfc_says() -> None:
    login = rfc_login()
    assert login.begin() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert login.respond(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert login.respond(SERVER_FINAL) is None


@pytest.mark.parametrize(
    ("server_first", "complaint"),
    [
        (b"", "is not SCRAM's"),
        (b"\xff\xfe", "is not SCRAM's"),
        (SERVER_FIRST.replace(b"r=rO", b"r=xx"), "another client's"),
        (b"r=" + NONCE.encode() + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "another client's"),
        (SERVER_FIRST.replace(b"4096", b"4095"), "asks for 4095 iterations"),
        (SERVER_FIRST.replace(b"4096", b"999999999"), "asks for 999999999 iterations"),
        (SERVER_FIRST.replace(b"gQ==", b"gQ="), "not base64"),
    ],
)
def test_scram_refuses_servers_that_do_not_follow_it(server_first: bytes, complaint: str) -> None:
    login = rfc_login()
    login.begin()
    with pytest.raises(AuthenticationFailed, match=complaint):
        login.respond(server_first)


@pytest.mark.parametrize("final", [b"", b"e=other-error", b"v=AAAA", SERVER_FINAL[:-2] + b"w="])
def test_scram_refuses_servers_that_do_not_know_the_password(final: bytes) -> None:
    login = rfc_login()
    login.begin()
    login.respond(SERVER_FIRST)
    with pytest.raises(AuthenticationFailed, match=r"SCRAM-SHA-256 failed: the broker"):
        login.respond(final)


@pytest.mark.parametrize("mechanism", sorted(BY_NAME))
@pytest.mark.parametrize("user", ["ann", "a=b,c", "Jürgen"])
def test_scram_meets_our_server(mechanism: str, user: str) -> None:
    kind = BY_NAME[mechanism]
    credential = ScramCredential.of_password(kind, "pass,word=")
    for password, succeeds in (("pass,word=", True), ("wrong", False)):
        login = make_login(mechanism, username=user, password=password)
        server = ScramExchange(kind, {(user, kind.code): credential}, b"secret")
        final = login.respond(server.respond(login.begin()))
        assert final is not None
        if not succeeds:
            with pytest.raises(AuthenticationFailed):
                server.respond(final)
            continue
        assert login.respond(server.respond(final)) is None
        assert str(server.principal) == f"User:{user}"


def test_plain_sends_user_and_password() -> None:
    login = make_login("PLAIN", username="ann", password="sécret")
    assert login.begin() == "\0ann\0sécret".encode()
    assert login.respond(b"") is None


def test_bearer_sends_a_token_and_acknowledges_a_refusal() -> None:
    login = make_login("OAUTHBEARER", token="abc.def.", extensions={"cluster": "x"})
    assert login.begin() == b"n,,\x01auth=Bearer abc.def.\x01cluster=x\x01\x01"
    assert login.respond(b"") is None
    assert login.respond(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(AuthenticationFailed, match="refused the token twice"):
        login.respond(b'{"status":"invalid_token"}')  # it has to fail; some would go on for ever


@pytest.mark.parametrize(
    ("mechanism", "given", "complaint"),
    [
        ("MAGIC", {}, "MAGIC; it must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"),
        ("PLAIN", {"username": "ann"}, "PLAIN needs sasl.username and sasl.password"),
        ("SCRAM-SHA-512", {"password": "x"}, "needs sasl.username and sasl.password"),
        ("PLAIN", {"username": "a\0b", "password": "x"}, "cannot contain NUL"),
        ("OAUTHBEARER", {}, "needs a token"),
        ("OAUTHBEARER", {"token": "a\nb"}, "contains blanks or control characters"),
        ("OAUTHBEARER", {"token": "a", "extensions": {"a=b": "c"}}, "write name=value"),
    ],
)
def test_login_refuses_what_it_cannot_send(
    mechanism: str, given: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint) as refused:
        make_login(mechanism, **given)  # type: ignore[arg-type]
    assert "secret" not in str(refused.value)


def test_scram_hides_no_more_than_base64() -> None:
    """The proof is not the password, in no encoding."""
    login = rfc_login()
    login.begin()
    sent = login.respond(SERVER_FIRST) or b""
    assert b"pencil" not in sent
    assert base64.b64encode(b"pencil").rstrip(b"=") not in sent
