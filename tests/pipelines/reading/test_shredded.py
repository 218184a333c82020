"""Encrypted values as readers get them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millstream.pipelines.reading.options import parse_read_options
from millstream.pipelines.reading.shredded import decrypted, decrypted_value
from millstream.records.arrow import binary_array
from millstream.records.columns import decode_columns
from millstream.records.record import Record, encode_batch
from millstream.shredding import DirectoryKeys, Shredder
from millstream.shredding.envelope import BadEnvelope

TOPIC = "orders"


@pytest.fixture
def keys(tmp_path: Path) -> DirectoryKeys:
    return DirectoryKeys(tmp_path / "keys")


@pytest.fixture
def shredder(keys: DirectoryKeys) -> Shredder:
    return Shredder(keys, cache_seconds=0)


def test_values_and_fields_are_decrypted_and_the_rest_stays(
    shredder: Shredder, keys: DirectoryKeys
) -> None:
    whole = shredder.encrypt(b"a value", subject="alice", topic=TOPIC)
    document = {"n": 1, "email": "a@example.org"}
    fields = shredder.encrypt_fields(document, ["email"], subject="alice", topic=TOPIC)
    encoded = json.dumps(fields).encode()
    assert decrypted_value(shredder, whole, TOPIC) == b"a value"
    assert json.loads(decrypted_value(shredder, encoded, TOPIC) or b"") == document
    for other in (b"", b"plain", b'no JSON, but "mse1:', b'["mse1:"]'):
        assert decrypted_value(shredder, other, TOPIC) == other
    keys.forget("alice")
    assert decrypted_value(shredder, whole, TOPIC) is None
    assert json.loads(decrypted_value(shredder, encoded, TOPIC) or b"") == {"n": 1, "email": None}


def test_value_from_elsewhere_is_refused_or_left_to_the_decoder(shredder: Shredder) -> None:
    moved = shredder.encrypt(b"a value", subject="alice", topic="elsewhere")
    with pytest.raises(BadEnvelope, match="written for another topic"):
        decrypted_value(shredder, moved, TOPIC)
    assert decrypted_value(shredder, moved, TOPIC, is_raw=False) == moved


def test_columns_are_decrypted_with_the_option(
    shredder: Shredder, keys: DirectoryKeys, tmp_path: Path
) -> None:
    whole = shredder.encrypt(b"a value", subject="alice", topic=TOPIC)
    gone = shredder.encrypt(b"another", subject="bob", topic=TOPIC)
    keys.forget("bob")
    records = [
        Record(offset, 0, b"key", value) for offset, value in enumerate((whole, None, gone, b"x"))
    ]
    columns = decode_columns(encode_batch(records), first_offset=0, end_offset=4)

    def values(**options: str) -> list[Any]:
        given = {"kafka.bootstrap.servers": "a:1", "subscribe": TOPIC, **options}
        read = decrypted(parse_read_options(given, streaming=False), TOPIC, columns)
        return binary_array(read.values, read.row_count).to_pylist()

    assert values() == [whole, None, gone, b"x"]
    address = str(tmp_path / "keys")
    assert values(shreddingKeys=address) == [b"a value", None, None, b"x"]
    with_password = {"kafka.bootstrap.servers": "a:1", "subscribe": TOPIC}
    with_password["shreddingKeys"] = "postgresql://me:secret@db/keys"
    assert "secret" not in repr(parse_read_options(with_password, streaming=False))
