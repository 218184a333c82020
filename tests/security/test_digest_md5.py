"""DIGEST-MD5 against the example of RFC 2831, and against servers that do not follow it."""

from __future__ import annotations

import pytest

from millstream.security.digest_md5 import DigestMd5Login
from millstream.security.exchange import AuthenticationFailed

CHALLENGE = (
    b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",'
    b"algorithm=md5-sess,charset=utf-8"
)


def example() -> DigestMd5Login:
    """Of RFC 2831, section 4."""
    return DigestMd5Login(
        *("chris", "secret"),
        service="imap",
        host="elwood.innosoft.com",
        new_nonce=lambda: "OA6MHXh6VqTrRk",
    )


def test_example_of_the_standard() -> None:
    login = example()
    assert login.begin() == b""
    response = login.respond(CHALLENGE)
    assert response is not None
    assert b"response=d388dad90d4bbd760a152321f2143af7," in response
    assert b'username="chris",realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh"' in response
    assert login.respond(b"rspauth=ea40f60335c427b5527b84dbabcdfffd") is None


@pytest.mark.parametrize(
    ("user", "password", "response"),
    [
        ("jürgen", "пароль", "2c43b4fdcf9fc5fb6778cf3d12d5584d"),
        ("brökers", "pass€", "783803a4de91b07c82859d19d573593c"),
    ],
)
def test_names_and_passwords_are_encoded_each_on_its_own_as_java_does(
    user: str, password: str, response: str
) -> None:
    """Java's SaslServer accepts these."""
    login = DigestMd5Login(
        *(user, password),
        service="imap",
        host="elwood.innosoft.com",
        new_nonce=lambda: "OA6MHXh6VqTrRk",
    )
    assert f"response={response},".encode() in (login.respond(CHALLENGE) or b"")


def test_server_that_does_not_know_the_password_is_refused() -> None:
    login = example()
    login.respond(CHALLENGE)
    with pytest.raises(AuthenticationFailed, match="impostor"):
        login.respond(b"rspauth=00000000000000000000000000000000")


@pytest.mark.parametrize(
    ("challenge", "reason"),
    [
        (b"", "not that of DIGEST-MD5"),
        (b'realm="x"', "not that of DIGEST-MD5"),
        (b'nonce="x', "not that of DIGEST-MD5"),
        (b'nonce="x",algorithm=sha-256', "not that of DIGEST-MD5"),
        (b'nonce="x",qop="auth-conf"', "use TLS"),
        (b"\xff\xfe", "not that of DIGEST-MD5"),
    ],
)
def test_bad_challenge_is_refused(challenge: bytes, reason: str) -> None:
    with pytest.raises(AuthenticationFailed, match=reason):
        example().respond(challenge)


def test_names_are_quoted() -> None:
    login = DigestMd5Login('a"b\\c', "p", service="s", host="h")
    response = login.respond(b'realm="r\\"1",nonce="n"')
    assert response is not None
    assert b'username="a\\"b\\\\c",realm="r\\"1"' in response
