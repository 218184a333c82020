"""Encrypts and decrypts values, or fields of JSON documents, with their subjects' keys.

Keys are kept in memory for a short time (`cache_seconds`): that long, a running program can still
decrypt what belongs to a forgotten subject. Thread-safe.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.errors import MillstreamError
from millstream.shredding.envelope import (
    NONCE_BYTES,
    BadEnvelope,
    Envelope,
    associated_data,
    from_text,
    is_encrypted,
    is_encrypted_text,
    to_text,
    unpack,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from millstream.shredding.store import KeyStore, SubjectKey

CACHE_SECONDS = 60.0
CACHED_MAX = 10_000


class Forgotten(MillstreamError):
    """The key of a value was deleted: nobody can read it any more."""


class _Cipher(NamedTuple):
    key_id: bytes
    aes: AESGCM
    expires: float


class Shredder:
    """See the module."""

    def __init__(
        self,
        keys: KeyStore,
        *,
        cache_seconds: float = CACHE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = keys
        self._cache_seconds = cache_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._by_subject: OrderedDict[str, _Cipher] = OrderedDict()
        self._by_id: OrderedDict[bytes, _Cipher] = OrderedDict()

    def encrypt(self, value: bytes, *, subject: str, topic: str, field: str = "") -> bytes:
        """The value so that only who has the subject's key can read it."""
        cipher = self._cached(self._by_subject, subject)
        if cipher is None:
            cipher = self._keep(self._keys.current(subject))
            self._put(self._by_subject, subject, cipher)
        nonce = os.urandom(NONCE_BYTES)
        data = associated_data(cipher.key_id, topic, field)
        return Envelope(cipher.key_id, nonce, cipher.aes.encrypt(nonce, value, data)).pack()

    def decrypt(self, value: bytes, *, topic: str, field: str = "") -> bytes:
        """The value; one that is not encrypted is returned as it is. Raises `Forgotten`, and
        `BadEnvelope` for a value that was changed, or moved from another topic or field."""
        if not is_encrypted(value):
            return value
        from cryptography.exceptions import InvalidTag

        envelope = unpack(value)
        cipher = self._cached(self._by_id, envelope.key_id)
        if cipher is None:
            key = self._keys.find(envelope.key_id)
            if key is None:
                raise Forgotten("the subject of this value was forgotten")
            cipher = self._keep(key)
        data = associated_data(envelope.key_id, topic, field)
        try:
            return cipher.aes.decrypt(envelope.nonce, envelope.ciphertext, data)
        except InvalidTag:
            raise BadEnvelope(
                f"an encrypted value of topic {topic} was changed, or written for another topic or "
                "field"
            ) from None

    def encrypt_fields(
        self, document: dict[str, Any], fields: Iterable[str], *, subject: str, topic: str
    ) -> dict[str, Any]:
        """A copy of a JSON document with these fields encrypted, those that it has."""
        encrypted = dict(document)
        for name in fields:
            if name in document:
                content = json.dumps(document[name]).encode()
                value = self.encrypt(content, subject=subject, topic=topic, field=name)
                encrypted[name] = to_text(value)
        return encrypted

    def decrypt_fields(
        self, document: dict[str, Any], *, topic: str, forgotten: Any = None
    ) -> dict[str, Any]:
        """A copy with all encrypted fields decrypted; `forgotten` in the place of those whose key
        was deleted."""
        decrypted = dict(document)
        for name, value in document.items():
            if is_encrypted_text(value):
                try:
                    content = self.decrypt(from_text(value), topic=topic, field=name)
                except Forgotten:
                    decrypted[name] = forgotten
                else:
                    decrypted[name] = json.loads(content)
        return decrypted

    def _keep(self, key: SubjectKey) -> _Cipher:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        cipher = _Cipher(key.id, AESGCM(key.secret), self._clock() + self._cache_seconds)
        self._put(self._by_id, key.id, cipher)
        return cipher

    def _cached(self, cache: OrderedDict[Any, _Cipher], name: str | bytes) -> _Cipher | None:
        with self._lock:
            found = cache.get(name)
            if found is not None and found.expires <= self._clock():
                del cache[name]
                return None
            return found

    def _put(self, cache: OrderedDict[Any, _Cipher], name: str | bytes, cipher: _Cipher) -> None:
        with self._lock:
            cache[name] = cipher
            if len(cache) > CACHED_MAX:
                cache.popitem(last=False)
