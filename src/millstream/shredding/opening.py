"""Opens a store of keys by its address: a directory, or postgresql://..."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.shredding.directory import DirectoryKeys

if TYPE_CHECKING:
    from millstream.shredding.store import KeyStore

POSTGRES = ("postgresql://", "postgres://")


def open_keys(address: str) -> KeyStore:
    """Raises `KeyStoreError` if it cannot be opened."""
    if address.startswith(POSTGRES):
        from millstream.shredding.postgres import PostgresKeys

        return PostgresKeys(address)
    return DirectoryKeys(address.removeprefix("file://"))
