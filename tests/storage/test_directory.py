"""One directory: how it fails, and how it gets rid of its garbage."""

from __future__ import annotations

import logging

import pytest

from millstream.errors import ApiError, ErrorCode
from tests.storage.store import DATA, Store


def test_failed_directory_refuses_and_names_the_first_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = Store().log().directory
    directory.check()
    with caplog.at_level(logging.ERROR):
        directory.fail(OSError("the cable is loose"))
        directory.fail(OSError("something later"))
    with pytest.raises(ApiError, match=f"{DATA} is offline: the cable is loose") as raised:
        directory.check()
    assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    said = [it for it in caplog.records if it.name == "millstream.storage.directory"]
    assert len(said) == 1


def test_sweep_removes_files_and_directories_that_were_given_up() -> None:
    store = Store()
    directory = store.log().directory
    store.fs.make_directory(f"{DATA}/gone")
    store.fs.close(store.fs.open(f"{DATA}/gone/file", create=True))
    store.fs.close(store.fs.open(f"{DATA}/single", create=True))
    for path in (f"{DATA}/gone", f"{DATA}/single", f"{DATA}/never-there"):
        directory.add_garbage(path)
    directory.sweep()
    assert not store.fs.exists(f"{DATA}/gone")
    assert not store.fs.exists(f"{DATA}/single")
