"""Values and fields: readable with the key, refused when they were changed, gone without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.shredding import DirectoryKeys, Forgotten, Shredder
from millstream.shredding.envelope import BadEnvelope


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys(tmp_path: Path) -> DirectoryKeys:
    return DirectoryKeys(tmp_path / "keys")


@pytest.fixture
def shredder(keys: DirectoryKeys, clock: Clock) -> Shredder:
    return Shredder(keys, clock=clock)


def test_value_is_readable_until_its_subject_is_forgotten(
    shredder: Shredder, keys: DirectoryKeys, clock: Clock
) -> None:
    sent = shredder.encrypt(b"secret", subject="alice", topic="orders")
    other = shredder.encrypt(b"other", subject="bob", topic="orders")
    assert b"secret" not in sent
    assert shredder.decrypt(sent, topic="orders") == b"secret"
    keys.forget("alice")
    clock.now += 61  # it may be in memory until then
    with pytest.raises(Forgotten):
        shredder.decrypt(sent, topic="orders")
    assert shredder.decrypt(other, topic="orders") == b"other"


def test_two_values_never_look_the_same(shredder: Shredder) -> None:
    values = {shredder.encrypt(b"x", subject="alice", topic="t") for _ in range(100)}
    assert len(values) == 100


def test_rotation_changes_new_values_only(
    shredder: Shredder, keys: DirectoryKeys, clock: Clock
) -> None:
    old = shredder.encrypt(b"old", subject="alice", topic="t")
    keys.rotate("alice")
    clock.now += 61
    new = shredder.encrypt(b"new", subject="alice", topic="t")
    assert old[4:20] != new[4:20]
    assert shredder.decrypt(old, topic="t") == b"old"
    assert shredder.decrypt(new, topic="t") == b"new"


def test_plain_values_stay_as_they_are(shredder: Shredder) -> None:
    assert shredder.decrypt(b"plain", topic="t") == b"plain"


@pytest.mark.parametrize("position", [5, 21, 40, -1])
def test_changed_value_is_refused(shredder: Shredder, position: int) -> None:
    sent = bytearray(shredder.encrypt(b"secret value", subject="alice", topic="t"))
    sent[position] ^= 1
    with pytest.raises((BadEnvelope, Forgotten)):  # a changed key id names no key
        shredder.decrypt(bytes(sent), topic="t")


def test_value_of_another_topic_or_field_is_refused(shredder: Shredder) -> None:
    sent = shredder.encrypt(b"x", subject="alice", topic="t", field="a")
    for topic, field in (("u", "a"), ("t", "b"), ("t", "")):
        with pytest.raises(BadEnvelope, match="another topic or field"):
            shredder.decrypt(sent, topic=topic, field=field)


def test_fields_of_a_document(shredder: Shredder, keys: DirectoryKeys, clock: Clock) -> None:
    document = {"id": 5, "email": "a@example.org", "tags": ["x", None], "note": "mse2:no"}
    sent = shredder.encrypt_fields(
        document, ["email", "tags", "missing"], subject="alice", topic="t"
    )
    assert sent["id"] == 5
    assert sent["note"] == "mse2:no"
    assert "example" not in str(sent)
    assert shredder.decrypt_fields(sent, topic="t") == document
    keys.forget("alice")
    clock.now += 61
    expected = document | {"email": "gone", "tags": "gone"}
    assert shredder.decrypt_fields(sent, topic="t", forgotten="gone") == expected
