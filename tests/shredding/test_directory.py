"""Keys in files: only their owner can read them, and nothing is left of a forgotten one."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.shredding.directory import DirectoryKeys
from millstream.shredding.store import KeyStoreError


def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    DirectoryKeys(path).current("alice")
    for it in (path, *path.rglob("*")):
        assert it.stat().st_mode & 0o077 == 0, it


def test_directory_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.mkdir(mode=0o755)
    path.chmod(0o755)
    with pytest.raises(KeyStoreError, match="chmod 700"):
        DirectoryKeys(path)


def test_no_file_names_or_has_the_subject_or_a_forgotten_secret(tmp_path: Path) -> None:
    keys = DirectoryKeys(tmp_path / "keys")
    secret = keys.current("alice@example.org").secret.hex()
    keys.current("bob")
    keys.forget("alice@example.org")
    for it in (tmp_path / "keys").rglob("*"):
        assert "alice" not in it.name
        assert not it.is_file() or secret.encode() not in it.read_bytes()


def test_interrupted_forgetting_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the first of two keys: the subject still names both."""
    keys = DirectoryKeys(tmp_path / "keys")
    first, second = keys.current("alice"), keys.rotate("alice")
    shred = keys._shred
    shredded: list[Path] = []

    def once(path: Path) -> None:
        if shredded:
            raise KeyboardInterrupt
        shredded.append(path)
        shred(path)

    monkeypatch.setattr(keys, "_shred", once)
    with pytest.raises(KeyboardInterrupt):
        keys.forget("alice")
    again = DirectoryKeys(tmp_path / "keys")
    assert again.find(first.id) is None
    assert again.find(second.id) == second
    assert again.forget("alice") == [first.id, second.id]
    assert again.find(second.id) is None


def test_damaged_file_is_named(tmp_path: Path) -> None:
    keys = DirectoryKeys(tmp_path / "keys")
    key = keys.current("alice")
    (file,) = (tmp_path / "keys" / "keys").glob("*/*.json")
    file.write_bytes(b"{}")
    with pytest.raises(KeyStoreError, match=f"key {key.id.hex()} is damaged"):
        keys.find(key.id)
    file.write_bytes(b"garbage")
    with pytest.raises(KeyStoreError, match="is damaged"):
        keys.find(key.id)


def crash_in_unlink(monkeypatch: pytest.MonkeyPatch, *, nth: int) -> None:
    """The nth file that is unlinked stays, full of zeros."""
    unlink, count = Path.unlink, iter(range(1, 1000))

    def crashing(self: Path, missing_ok: bool = False) -> None:
        if next(count) == nth:
            raise KeyboardInterrupt
        unlink(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", crashing)


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_crash_at_any_file_leaves_a_subject_that_can_be_used_and_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """Two keys, then the subject itself."""
    keys = DirectoryKeys(tmp_path / "keys")
    old = [keys.current("alice"), keys.rotate("alice")]
    with monkeypatch.context() as crashing:
        crash_in_unlink(crashing, nth=nth)
        with pytest.raises(KeyboardInterrupt):
            keys.forget("alice")
    again = DirectoryKeys(tmp_path / "keys")
    assert [again.find(it.id) is None for it in old] == [True, nth > 1]
    new = again.current("alice")
    assert again.find(new.id) == new
    deleted = again.forget("alice")
    assert new.id in deleted
    assert all(again.find(it.id) is None for it in (*old, new))
    assert again.forget("alice") == []
    assert again.subject_count() == 0
