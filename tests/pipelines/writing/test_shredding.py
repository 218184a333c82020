"""Values that are encrypted on their way into a topic."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.pipelines.writing.options import Shredding, parse_write_options
from millstream.pipelines.writing.shredding import encrypted
from millstream.shredding import DirectoryKeys, Shredder


def test_values_are_encrypted_for_their_subjects(tmp_path: Path) -> None:
    address = str(tmp_path / "keys")
    values = pa.array(["one", "two", None, "public"])
    subjects = pa.array([b"alice", b"bob", b"alice", None])
    sent = encrypted(values, subjects, Shredding(address, "key"), "orders").to_pylist()
    shredder = Shredder(DirectoryKeys(address), cache_seconds=0)
    assert [it and shredder.decrypt(it, topic="orders") for it in sent] == [
        b"one", b"two", None, b"public",
    ]  # fmt: skip
    assert sent[3] == b"public"
    assert b"one" not in sent[0]
    assert DirectoryKeys(address).forget("alice")


def test_only_chosen_fields_are_encrypted(tmp_path: Path) -> None:
    address = str(tmp_path / "keys")
    document = {"id": 7, "email": "a@example.org", "n": 1}
    wanted = Shredding(address, "id", ("email", "phone"))
    (sent,) = encrypted(pa.array([json.dumps(document)]), pa.array([7]), wanted, "orders")
    written = json.loads(sent.as_py())
    assert (written["id"], written["n"]) == (7, 1)
    assert written["email"].startswith("mse1:")
    shredder = Shredder(DirectoryKeys(address))
    assert shredder.decrypt_fields(written, topic="orders") == document


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shreddingSubject": "key"}, "need shreddingKeys"),
        ({"shreddingKeys": "/keys"}, "needs shreddingSubject"),
        ({"shreddingKeys": "/keys", "shreddingSubject": "user"}, "can only be key"),
        (
            {"shreddingKeys": "/k", "shreddingSubject": "key", "shreddingFields": "a"},
            "is for valueFormat json",
        ),
        ({"shreddingKeys": "/k", "shreddingSubject": "key", "topic": ""}, "needs the option topic"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, str], message: str) -> None:
    given = {"kafka.bootstrap.servers": "a:1", "topic": "orders", **options}
    if not given["topic"]:
        del given["topic"]
    with pytest.raises(ConfigError, match=message):
        parse_write_options(given, streaming=False)


def test_address_of_the_keys_is_not_shown() -> None:
    given = {"kafka.bootstrap.servers": "a:1", "topic": "orders", "shreddingSubject": "key"}
    given["shreddingKeys"] = "postgresql://me:secret@db/keys"
    assert "secret" not in repr(parse_write_options(given, streaming=False))
