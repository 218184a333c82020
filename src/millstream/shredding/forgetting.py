"""Forgets a subject, and writes a receipt: a line of JSON, chained to the one before by its hash.

A receipt names the subject by a salted hash, the ids of the deleted keys, who asked and when. It
says that the keys were looked for again in the store, and not found. It cannot say anything about
copies of the store.

Before the first key is deleted, their ids are written to `<receipts>.<hash of the subject>.begun`,
which is removed after the receipt was written. So an attempt after a crash knows what is to be
named in the receipt.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from millstream.shredding.directory import sync_directory
from millstream.shredding.store import KeyStore, KeyStoreError, subject_hash


def forget(
    keys: KeyStore,
    subject: str,
    *,
    receipts: Path,
    requested_by: str,
    reason: str = "",
) -> Mapping[str, Any]:
    """Delete the keys of a subject. Raises `KeyStoreError` if it has none: a misspelled name must
    not look like success. Can be repeated after a crash."""
    begun = receipts.with_name(f"{receipts.name}.{subject_hash(subject)}.begun")
    known = _union(_read_begun(begun), keys.key_ids(subject))
    if not known:
        raise KeyStoreError(f"the subject {subject!r} has no keys: there is nothing to forget")
    check_appendable(receipts)
    _write_begun(begun, known)
    deleted = _union(known, keys.forget(subject))
    left = [it.hex() for it in deleted if keys.find(it) is not None]
    if left:
        raise KeyStoreError(f"these keys are still there: {', '.join(left)}")
    salt = secrets.token_hex(16)
    receipt = append_receipt(
        receipts,
        {
            "salt": salt,
            "subject": hashlib.sha256(f"{salt}\0{subject}".encode()).hexdigest(),
            "keys": [it.hex() for it in deleted],
            "forgotten_ms": time.time_ns() // 1_000_000,
            "requested_by": requested_by,
            "reason": reason,
        },
    )
    begun.unlink(missing_ok=True)
    sync_directory(begun.parent)
    return receipt


def _union(first: Iterable[bytes], second: Iterable[bytes]) -> list[bytes]:
    return list(dict.fromkeys([*first, *second]))


def _read_begun(path: Path) -> list[bytes]:
    try:
        return [bytes.fromhex(it) for it in json.loads(path.read_bytes())["keys"]]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise KeyStoreError(f"{path} is damaged: {error}") from error


def _write_begun(path: Path, key_ids: Iterable[bytes]) -> None:
    beside = path.with_suffix(f".{secrets.token_hex(4)}.new")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(json.dumps({"keys": [it.hex() for it in key_ids]}).encode())
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_directory(path.parent)


# Receipts


def append_receipt(path: Path, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add a receipt to the chain in a file, durably. What a crash has left of a receipt at the end
    is cut off. Raises `KeyStoreError` if the last receipt is damaged."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        content = file.read()
        lines = _whole_lines(content)
        previous = _last_digest(path, lines)
        kept = b"".join(line + b"\n" for line in lines)
        if not content.startswith(kept):  # the last one is whole, but for the end of its line
            file.write(b"\n")
        elif len(kept) < len(content):
            file.truncate(len(kept))
        receipt = {"number": len(lines) + 1, "previous": previous, **fields}
        receipt["digest"] = digest(receipt)
        file.write(json.dumps(receipt, sort_keys=True).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if not lines:
        sync_directory(path.parent)
    return receipt


def check_appendable(path: Path) -> None:
    """Raise `KeyStoreError` if no receipt can be added to the file."""
    if path.exists():
        _last_digest(path, _whole_lines(path.read_bytes()))
    elif not path.parent.is_dir():
        raise KeyStoreError(f"there is no directory {path.parent} for the receipts")


def _whole_lines(content: bytes) -> list[bytes]:
    """Without what a crash has left of the last one."""
    lines = content.splitlines()
    if lines and not content.endswith(b"\n") and _digest_of(lines[-1]) is None:
        lines.pop()
    return lines


def _last_digest(path: Path, lines: list[bytes]) -> str:
    if not lines:
        return ""
    found = _digest_of(lines[-1])
    if found is None:
        raise KeyStoreError(
            f"line {len(lines)} of {path} is no intact receipt: move the file away, and keep it"
        )
    return found


def _digest_of(line: bytes) -> str | None:
    try:
        return str(json.loads(line)["digest"])
    except (ValueError, KeyError, TypeError):
        return None


def digest(receipt: Mapping[str, Any]) -> str:
    fields = {name: value for name, value in receipt.items() if name != "digest"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def check_receipts(path: Path) -> list[str]:
    """What is wrong with the receipts of a file; empty if they are intact."""
    problems = []
    previous = ""
    lines = path.read_bytes().splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            receipt = json.loads(line)
            is_intact = receipt["digest"] == digest(receipt)
            is_next = receipt["number"] == number and receipt["previous"] == previous
            previous = receipt["digest"]
        except (ValueError, KeyError, TypeError):
            problems.append(f"line {number} is no receipt")
            continue
        if not is_intact:
            problems.append(f"receipt {number} was changed: its hash does not match")
        if not is_next:
            problems.append(f"a receipt before line {number} is missing or was changed")
    problems += [
        f"a subject was not forgotten completely, see {it.name}: forget it again"
        for it in sorted(path.parent.glob(f"{path.name}.*.begun"))
    ]
    return problems
