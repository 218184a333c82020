"""Who sends a request: the principal of an authenticated connection, in Kafka's notation.

User:alice        by SASL, or by the rules for names in certificates
User:CN=host,O=x  by a certificate (mTLS)
User:ANONYMOUS    a connection without authentication
"""

from __future__ import annotations

from typing import NamedTuple

USER_TYPE = "User"


class Principal(NamedTuple):
    """A type, which is `User` for all that Kafka's clients can be, and a name."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Principal:
        """From `type:name`. Raises `ValueError`."""
        type_, colon, name = text.partition(":")
        if not (type_ and colon and name):
            raise ValueError(f"principal {text!r}: write it as type:name, e.g. User:alice")
        return cls(type_, name)


ANONYMOUS = Principal(USER_TYPE, "ANONYMOUS")
