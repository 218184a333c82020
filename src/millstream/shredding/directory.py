"""Keys in files, for one host or a shared file system.

    subjects/ab/<hash of the subject>.json     its key ids, the current one last
    keys/3f/<key id>.json                      a key

A file is written beside its place, synced and renamed; a key exists before a subject names it. A
forgotten key is overwritten before its file is unlinked; what the disk keeps of it in free blocks,
and copies in backups of this directory, are beyond reach: keep them apart from the data's backups.
Only the owner can read the files. One lock orders all changes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millstream.shredding.envelope import KEY_ID_BYTES
from millstream.shredding.store import KEY_BYTES, KeyStoreError, SubjectKey, subject_hash


class DirectoryKeys:
    """A `KeyStore` in a directory, which is created for its owner only."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._make_directory(self._path)
        for name in ("subjects", "keys"):
            self._make_directory(self._path / name)
        mode = self._path.stat().st_mode & 0o077
        if mode:
            raise KeyStoreError(
                f"{self._path} can be read by others (mode {mode:03o}): run chmod 700 {self._path}"
            )

    def current(self, subject: str) -> SubjectKey:
        known = self._key_ids(subject)
        if not known:
            with self._lock():
                known = self._key_ids(subject) or self._add_key(subject, [])
        key = self.find(bytes.fromhex(known[-1]))
        if key is None:  # forgotten at this moment
            return self.current(subject)
        return key

    def find(self, key_id: bytes) -> SubjectKey | None:
        fields = self._read(self._key_file(key_id.hex()))
        if fields is None:
            return None
        try:
            return SubjectKey(key_id, bytes.fromhex(fields["secret"]), fields["created_ms"])
        except (KeyError, TypeError, ValueError) as error:
            raise KeyStoreError(f"the file of key {key_id.hex()} is damaged") from error

    def rotate(self, subject: str) -> SubjectKey:
        with self._lock():
            known = self._key_ids(subject)
            if not known:
                raise KeyStoreError(f"the subject {subject!r} has no keys")
            key_id = self._add_key(subject, known)[-1]
        key = self.find(bytes.fromhex(key_id))
        assert key is not None
        return key

    def forget(self, subject: str) -> list[bytes]:
        with self._lock():
            known = self._key_ids(subject)
            for key_id in known:
                self._shred(self._key_file(key_id))
            # The subject last: after a crash it still names what is left to delete.
            self._shred(self._subject_file(subject))
        return [bytes.fromhex(it) for it in known]

    def subject_count(self) -> int:
        return sum(1 for _ in (self._path / "subjects").glob("*/*.json"))

    def _add_key(self, subject: str, known: list[str]) -> list[str]:
        key_id = secrets.token_hex(KEY_ID_BYTES)
        fields = {"secret": secrets.token_hex(KEY_BYTES), "created_ms": time.time_ns() // 1_000_000}
        self._write(self._key_file(key_id), fields)
        key_ids = [*known, key_id]
        self._write(self._subject_file(subject), {"keys": key_ids})
        return key_ids

    def _key_ids(self, subject: str) -> list[str]:
        fields = self._read(self._subject_file(subject))
        return [] if fields is None else [str(it) for it in fields["keys"]]

    def _subject_file(self, subject: str) -> Path:
        name = subject_hash(subject)
        return self._path / "subjects" / name[:2] / f"{name}.json"

    def _key_file(self, key_id: str) -> Path:
        return self._path / "keys" / key_id[:2] / f"{key_id}.json"

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            fields = json.loads(content)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            if not path.exists():
                return None  # overwritten and deleted while it was read
            raise KeyStoreError(f"{path} is damaged")
        return fields

    def _write(self, path: Path, fields: dict[str, Any]) -> None:
        self._make_directory(path.parent)
        beside = path.with_suffix(".new")
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(json.dumps(fields).encode())
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        _sync_directory(path.parent)

    def _shred(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            with path.open("r+b") as file:
                file.write(bytes(path.stat().st_size))
                file.flush()
                os.fsync(file.fileno())
            path.unlink()
            _sync_directory(path.parent)

    def _make_directory(self, path: Path) -> None:
        if not path.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)
            _sync_directory(path.parent)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        fd = os.open(self._path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
