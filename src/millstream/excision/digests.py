"""Hashes for receipts: of rows, and of the files of a checkpoint.

The hash of rows does not depend on their order. A row is written in one form only: the JSON array
of its id (its key as one string, `document_id`) and its fields, with sorted names, without spaces,
in ASCII. Its own hash is HMAC-SHA-256 of that with the salt of the job as key. The hash of several
rows is SHA-256 over their sorted hashes; of none it is SHA-256 of nothing.

The hash of a directory is SHA-256 over the JSON array of [path, size, SHA-256 of the content] of
its files, sorted by path.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from millstream.errors import MillstreamError

Digest = Mapping[str, Any]  # {"rows": 2, "sha256": "..."}


class RowsDigest:
    """The hash of rows that are added in any order; takes some 70 bytes of memory per row."""

    def __init__(self, salt: str) -> None:
        self._salt = salt.encode()
        self._hashes: list[bytes] = []

    def add(self, rows: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        for row in rows:
            text = json.dumps(row, sort_keys=True, separators=(",", ":"), default=str)
            self._hashes.append(hmac.digest(self._salt, text.encode(), "sha256"))

    def result(self) -> Digest:
        whole = hashlib.sha256(b"".join(sorted(self._hashes)))
        return {"rows": len(self._hashes), "sha256": whole.hexdigest()}


def compare(
    where: str,
    writer: str,
    now: Digest,
    before: str | None,
    after: str | None,
    *,
    has_gone_on: bool,
) -> Iterator[str]:
    """What is wrong with rows that had these hashes before and after an excision. Once their writer
    has gone on, the hash tells nothing: a person who is a customer again has her row again."""
    found = now["sha256"]
    if has_gone_on or after is None or found == after:
        return  # None: of a version that did not hash rows
    if found == before:
        yield f"{where} has exactly the rows from before the excision: restored. Excise again"
    else:
        yield (
            f"{where} has other rows than after the excision ({now['rows']}, sha256 {found}, not "
            f"{after}), although the {writer} has written nothing since: something else wrote to it"
        )


def digest_directory(directory: Path) -> Digest:
    """Files that disappear meanwhile are left out: a query that runs deletes old ones. Raises
    `MillstreamError` for one that cannot be read."""
    found = sorted(_files(directory))
    text = json.dumps(found, separators=(",", ":"))
    return {
        "files": len(found),
        "bytes": sum(size for _, size, _ in found),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
    }


def _files(directory: Path) -> Iterator[tuple[str, int, str]]:
    for path in directory.rglob("*"):
        try:
            if not path.is_file():
                continue
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256")
                size = file.tell()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise MillstreamError(f"{path} cannot be read: {error.strerror}") from error
        yield path.relative_to(directory).as_posix(), size, content.hexdigest()
