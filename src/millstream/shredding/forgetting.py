"""Forgets a subject, and writes a receipt: a line of JSON, chained to the one before by its hash.

A receipt names the subject by a salted hash, the ids of the deleted keys, who asked and when. It
says that the keys were looked for again in the store, and not found. It cannot say anything about
copies of the store.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millstream.shredding.store import KeyStore, KeyStoreError


def forget(
    keys: KeyStore,
    subject: str,
    *,
    receipts: Path,
    requested_by: str,
    reason: str = "",
) -> Mapping[str, Any]:
    """Delete the keys of a subject. Raises `KeyStoreError` if it has none: a misspelled name must
    not look like success."""
    deleted = keys.forget(subject)
    if not deleted:
        raise KeyStoreError(f"the subject {subject!r} has no keys: there is nothing to forget")
    left = [it.hex() for it in deleted if keys.find(it) is not None]
    if left:
        raise KeyStoreError(f"these keys are still there: {', '.join(left)}")
    salt = secrets.token_hex(16)
    return append_receipt(
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


def append_receipt(path: Path, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add a receipt to the chain in a file, durably."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lines = file.read().splitlines()
        previous = json.loads(lines[-1])["digest"] if lines else ""
        receipt = {"number": len(lines) + 1, "previous": previous, **fields}
        receipt["digest"] = digest(receipt)
        file.write(json.dumps(receipt, sort_keys=True).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return receipt


def digest(receipt: Mapping[str, Any]) -> str:
    fields = {name: value for name, value in receipt.items() if name != "digest"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def check_receipts(path: Path) -> list[str]:
    """What is wrong with the receipts of a file; empty if they are intact."""
    problems = []
    previous = ""
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
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
    return problems
