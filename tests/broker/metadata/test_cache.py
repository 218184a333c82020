"""Encoded Metadata responses: kept for one version, and not too many of them."""

from __future__ import annotations

from millstream.broker.metadata.cache import CACHED_ANSWERS_MAX, MetadataCache


def test_cache_holds_one_version_and_so_many_answers() -> None:
    cache = MetadataCache()
    assert cache.get(1, (9, "PLAINTEXT", b"")) is None
    cache.put((9, "PLAINTEXT", b""), b"answer")
    assert cache.get(1, (9, "PLAINTEXT", b"")) == b"answer"
    assert cache.get(2, (9, "PLAINTEXT", b"")) is None
    for number in range(CACHED_ANSWERS_MAX + 1):
        cache.put((9, "PLAINTEXT", b"%d" % number), b"")
    assert cache.get(2, (9, "PLAINTEXT", b"0")) is None
