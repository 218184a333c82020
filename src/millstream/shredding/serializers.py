"""Serializers for confluent-kafka: they wrap another one, which makes the bytes.

    value = EncryptingSerializer(JSONSerializer(...), shredder, subject=lambda it: it["customer"])
    producer = SerializingProducer({..., "value.serializer": value})

A value of a forgotten subject is None for the consumer, like a tombstone, unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.shredding.shredder import Forgotten, Shredder

Inner = Callable[[Any, Any], Any]


class EncryptingSerializer:
    """`subject` gives the subject of a value; None leaves the value as it is."""

    def __init__(
        self, inner: Inner, shredder: Shredder, *, subject: Callable[[Any], str | None]
    ) -> None:
        self._inner = inner
        self._shredder = shredder
        self._subject = subject

    def __call__(self, value: Any, context: Any = None) -> bytes | None:
        encoded: bytes | None = self._inner(value, context)
        if encoded is None:
            return None
        subject = self._subject(value)
        if subject is None:
            return encoded
        return self._shredder.encrypt(encoded, subject=subject, topic=context.topic)


class DecryptingDeserializer:
    """Gives `forgotten` for a value whose key was deleted, without calling `inner`."""

    def __init__(self, inner: Inner, shredder: Shredder, *, forgotten: Any = None) -> None:
        self._inner = inner
        self._shredder = shredder
        self._forgotten = forgotten

    def __call__(self, value: bytes | None, context: Any = None) -> Any:
        if value is None:
            return self._inner(None, context)
        try:
            decrypted = self._shredder.decrypt(value, topic=context.topic)
        except Forgotten:
            return self._forgotten
        return self._inner(decrypted, context)
