"""What a store of subjects' keys does.

A subject is known by a hash of its name, so that the store lists no names. It has one current key,
with which values are encrypted, and older ones after a rotation, with which they are still
decrypted. Forgetting deletes all of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Protocol

from millstream.errors import MillstreamError

KEY_BYTES = 32


class KeyStoreError(MillstreamError):
    """The store cannot be used; the message says why."""


@dataclass(frozen=True)
class SubjectKey:
    id: bytes
    secret: bytes = field(repr=False)
    created_ms: int


class KeyStore(Protocol):
    """All methods can be called from several processes at once."""

    def current(self, subject: str) -> SubjectKey:
        """The key to encrypt with; a new subject gets one."""
        ...

    def find(self, key_id: bytes) -> SubjectKey | None:
        """None: it was deleted, or never was."""
        ...

    def rotate(self, subject: str) -> SubjectKey:
        """Give a subject a new current key. Raises `KeyStoreError` for an unknown subject."""
        ...

    def key_ids(self, subject: str) -> list[bytes]:
        """Of all keys that the subject has, the current one last."""
        ...

    def forget(self, subject: str) -> list[bytes]:
        """Delete all keys of a subject; returns their ids, none if it has no keys."""
        ...

    def subject_count(self) -> int: ...


def subject_hash(subject: str) -> str:
    """By which a store knows a subject."""
    if not subject:
        raise KeyStoreError("a subject needs a name")
    return hashlib.sha256(b"millstream-subject\0" + subject.encode()).hexdigest()
