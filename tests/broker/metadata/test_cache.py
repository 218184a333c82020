"""Encoded Metadata responses: kept for one version, and not too many of them."""

from __future__ import annotations

from millstream.broker.metadata.cache import (
    CACHED_ANSWER_BYTES_MAX,
    CACHED_ANSWERS_MAX,
    CACHED_BYTES_MAX,
    MetadataCache,
)


def test_cache_holds_one_version_and_so_many_answers() -> None:
    cache = MetadataCache()
    assert cache.get(1, (9, "PLAINTEXT", None, b"")) is None
    cache.put((9, "PLAINTEXT", None, b""), b"answer")
    assert cache.get(1, (9, "PLAINTEXT", None, b"")) == b"answer"
    assert cache.get(2, (9, "PLAINTEXT", None, b"")) is None
    for number in range(CACHED_ANSWERS_MAX + 1):
        cache.put((9, "PLAINTEXT", None, b"%d" % number), b"")
    assert cache.get(2, (9, "PLAINTEXT", None, b"0")) is None


def test_cache_holds_so_many_bytes() -> None:
    """Requests are chosen by clients, and may make long answers."""
    cache = MetadataCache()
    answer = bytes(CACHED_ANSWER_BYTES_MAX)
    count = CACHED_BYTES_MAX // len(answer) + 1
    keys = [(9, "PLAINTEXT", None, b"%d" % number) for number in range(count)]
    for key in keys:
        cache.put(key, answer)
    assert sum(len(cache.get(-1, key) or b"") for key in keys) <= CACHED_BYTES_MAX
    assert cache.get(-1, keys[-1]) == answer
