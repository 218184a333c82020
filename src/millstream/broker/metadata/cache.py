"""Encoded Metadata responses, kept until the metadata change: hundreds of clients ask the same."""

from __future__ import annotations

from typing import TypeAlias

CACHED_ANSWERS_MAX = 256
CACHED_ANSWER_BYTES_MAX = 1024 * 1024
CACHED_BYTES_MAX = 32 * 1024 * 1024  # of all answers and their requests
KEPT_REQUEST_BYTES_MAX = 16 * 1024  # longer ones would take memory that their senders choose


Key: TypeAlias = tuple[int, str, tuple[str, str] | None, bytes]
"""The version of the request, the listener, the client's identity where rights depend on it, and
the request."""


class MetadataCache:
    """Encoded answers, good for one version of the metadata."""

    def __init__(self) -> None:
        self._version = -1
        self._answers: dict[Key, bytes] = {}
        self._bytes = 0

    def get(self, version: int, key: Key) -> bytes | None:
        if version != self._version:
            self.clear()
            self._version = version
        return self._answers.get(key)

    def put(self, key: Key, answer: bytes) -> None:
        if len(answer) <= CACHED_ANSWER_BYTES_MAX:
            if len(self._answers) >= CACHED_ANSWERS_MAX or self._bytes >= CACHED_BYTES_MAX:
                self.clear()
            self._answers[key] = answer
            self._bytes += len(key[-1]) + len(answer)

    def clear(self) -> None:
        """Something that is not in the metadata has changed: a log directory failed."""
        self._answers.clear()
        self._bytes = 0
