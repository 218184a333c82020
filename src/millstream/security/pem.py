"""Certificates and keys in PEM: for OpenSSL, which reads keys from files only, and out of Java."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def private_file(content: str) -> Iterator[str]:
    """The path of a file that nobody else can read, and that is gone at once."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix="millstream-", suffix=".pem"
    ) as file:
        file.write(content)
        file.flush()
        yield file.name


def how_to_convert(location: str) -> str:
    """What to do with a store that only Java reads."""
    return (
        f"convert it with: keytool -importkeystore -srckeystore {location} -destkeystore store.p12 "
        "-deststoretype PKCS12 && openssl pkcs12 -in store.p12 -nodes -out store.pem"
    )
