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
        key = self._newest(self.key_ids(subject))
        if key is None:
            with self._lock():
                known = self.key_ids(subject)
                key = self._newest(known)
                if key is None:
                    # If keys are named but gone, a crash has interrupted `forget`: the subject goes
                    # on naming them, for the next attempt.
                    key = self._add_key(subject, known)
        return key

    def _newest(self, known: list[bytes]) -> SubjectKey | None:
        return self.find(known[-1]) if known else None

    def find(self, key_id: bytes) -> SubjectKey | None:
        fields = self._read(self._key_file(key_id))
        if fields is None:
            return None
        try:
            return SubjectKey(key_id, bytes.fromhex(fields["secret"]), fields["created_ms"])
        except (KeyError, TypeError, ValueError) as error:
            raise KeyStoreError(f"the file of key {key_id.hex()} is damaged") from error

    def rotate(self, subject: str) -> SubjectKey:
        with self._lock():
            known = self.key_ids(subject)
            if not known:
                raise KeyStoreError(f"the subject {subject!r} has no keys")
            return self._add_key(subject, known)

    def key_ids(self, subject: str) -> list[bytes]:
        fields = self._read(self._subject_file(subject))
        return [] if fields is None else [bytes.fromhex(it) for it in fields["keys"]]

    def forget(self, subject: str) -> list[bytes]:
        with self._lock():
            known = self.key_ids(subject)
            for key_id in known:
                self._shred(self._key_file(key_id))
            # The subject last: after a crash it still names what is left to delete.
            self._shred(self._subject_file(subject))
        return known

    def subject_count(self) -> int:
        return sum(1 for _ in (self._path / "subjects").glob("*/*.json"))

    def _add_key(self, subject: str, known: list[bytes]) -> SubjectKey:
        key = SubjectKey(
            secrets.token_bytes(KEY_ID_BYTES),
            secrets.token_bytes(KEY_BYTES),
            time.time_ns() // 1_000_000,
        )
        fields = {"secret": key.secret.hex(), "created_ms": key.created_ms}
        self._write(self._key_file(key.id), fields)
        key_ids = [it.hex() for it in (*known, key.id)]
        self._write(self._subject_file(subject), {"keys": key_ids})
        return key

    def _subject_file(self, subject: str) -> Path:
        name = subject_hash(subject)
        return self._path / "subjects" / name[:2] / f"{name}.json"

    def _key_file(self, key_id: bytes) -> Path:
        name = key_id.hex()
        return self._path / "keys" / name[:2] / f"{name}.json"

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        if content and not content.strip(b"\0"):
            return None  # overwritten, and not unlinked yet: `forget` is at it, or a crash was
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
        sync_directory(path.parent)

    def _shred(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            with path.open("r+b") as file:
                file.write(bytes(path.stat().st_size))
                file.flush()
                os.fsync(file.fileno())
            path.unlink()
            sync_directory(path.parent)

    def _make_directory(self, path: Path) -> None:
        if not path.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)
            sync_directory(path.parent)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        fd = os.open(self._path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
