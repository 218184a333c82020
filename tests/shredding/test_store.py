"""What every store of keys does: keys are made once, rotated, forgotten, and made again."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from millstream.shredding.opening import open_keys
from millstream.shredding.store import KeyStore, KeyStoreError, subject_hash


@pytest.fixture
def subject() -> str:
    return f"alice-{uuid.uuid4().hex}"


def test_subject_keeps_its_key(keys: KeyStore, address: str, subject: str) -> None:
    key = keys.current(subject)
    assert len(key.secret) == 32
    assert open_keys(address).current(subject) == key
    assert open_keys(address).find(key.id) == key
    assert keys.current(subject + "2").id != key.id


def test_rotated_key_is_the_current_one_and_the_old_one_stays(keys: KeyStore, subject: str) -> None:
    old = keys.current(subject)
    new = keys.rotate(subject)
    assert keys.current(subject) == new != old
    assert keys.find(old.id) == old


def test_forgotten_subject_has_no_keys_and_may_come_back_with_others(
    keys: KeyStore, subject: str
) -> None:
    count = keys.subject_count()
    old, new = keys.current(subject), keys.rotate(subject)
    assert keys.subject_count() == count + 1
    assert keys.key_ids(subject) == [old.id, new.id]
    assert keys.forget(subject) == [old.id, new.id]
    assert keys.find(old.id) is None
    assert keys.find(new.id) is None
    assert keys.subject_count() == count
    assert keys.forget(subject) == keys.key_ids(subject) == []
    assert keys.current(subject).id not in (old.id, new.id)


def test_processes_that_meet_a_subject_at_once_get_one_key(address: str, subject: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: open_keys(address).current(subject), range(8)))
    assert len({key.id for key in found}) == 1


def test_unknown_subject_cannot_be_rotated(keys: KeyStore, subject: str) -> None:
    with pytest.raises(KeyStoreError, match=f"{subject}.* has no keys"):
        keys.rotate(subject)


def test_subject_needs_a_name() -> None:
    with pytest.raises(KeyStoreError, match="needs a name"):
        subject_hash("")


def test_secret_is_not_shown(keys: KeyStore, subject: str) -> None:
    key = keys.current(subject)
    assert key.secret.hex() not in repr(key)
    assert repr(key.secret) not in repr(key)
