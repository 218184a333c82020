"""`moved.json`: what it says, and two logs of one name."""

from __future__ import annotations

from uuid import UUID

import pytest

from millstream.errors import StorageError
from millstream.storage import names
from millstream.storage.filesystem import write_file
from millstream.storage.moved import Origin, forget_origin, read_origin, write_origin
from millstream.testing.filesystem import MemoryFileSystem
from tests.storage.store import TOPIC, Store

ORIGIN = Origin(UUID(int=7), 30, 5, 29)


def test_origin_is_read_back() -> None:
    fs = MemoryFileSystem()
    fs.make_directory("/data/orders-0")
    assert read_origin(fs, "/data/orders-0") is None
    write_origin(fs, "/data/orders-0", ORIGIN)
    assert read_origin(fs, "/data/orders-0") == ORIGIN


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"directory_id": "x"}', b"\xff"])
def test_damaged_file_is_named(content: bytes) -> None:
    fs = MemoryFileSystem()
    fs.make_directory("/data/orders-0")
    write_file(fs, f"/data/orders-0/{names.MOVED}", content, sync=True)
    with pytest.raises(StorageError, match=r"/data/orders-0/moved.json is damaged"):
        read_origin(fs, "/data/orders-0")


def test_origin_is_forgotten() -> None:
    store = Store()
    store.append(b"value")
    store.flush(0)
    log = store.log(0)
    write_origin(store.fs, log.path, ORIGIN)
    forget_origin(log)
    forget_origin(log)
    assert read_origin(store.fs, log.path) is None


def test_two_logs_of_one_name_without_it_are_refused() -> None:
    store = Store(paths=("/one", "/two"))
    store.append(b"value")
    store.flush(0)
    store.directories.close()
    for path, content in store.files().items():
        if f"/{TOPIC}-0/" in path:
            copy = path.replace("/one/", "/two/")
            store.fs.make_directory(copy.rpartition("/")[0])
            write_file(store.fs, copy, content, sync=True)
    with pytest.raises(StorageError, match="is in both /one and /two"):
        store.reopen()
