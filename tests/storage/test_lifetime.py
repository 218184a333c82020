"""A log in use and deleted: those inside finish, those who come later are refused."""

from __future__ import annotations

import errno
import threading

import pytest

from millstream.errors import ErrorCode, LogGone
from tests.peers.patience import PATIENCE_SECONDS
from tests.storage.store import Store


def test_deleted_log_refuses_everybody() -> None:
    log = Store().log()
    log.check()
    log.mark_deleted()
    with pytest.raises(LogGone):
        log.check()
    with pytest.raises(LogGone), log.held():
        pytest.fail("nobody may enter")


def test_deletion_waits_for_threads_in_the_directory() -> None:
    log = Store().log()
    inside, leave = threading.Event(), threading.Event()

    def work() -> None:
        with log.held():
            inside.set()
            leave.wait(PATIENCE_SECONDS)

    worker = threading.Thread(target=work)
    worker.start()
    assert inside.wait(PATIENCE_SECONDS)
    log.mark_deleted()
    is_unused = threading.Event()
    waiter = threading.Thread(target=lambda: (log.wait_until_unused(), is_unused.set()))
    waiter.start()
    assert not is_unused.is_set()
    leave.set()
    worker.join(PATIENCE_SECONDS)
    assert is_unused.wait(PATIENCE_SECONDS)
    waiter.join(PATIENCE_SECONDS)


def test_full_disk_is_no_failure_of_the_directory() -> None:
    log = Store().log()
    error = log.storage_error("roll", OSError(errno.ENOSPC, "No space left on device"))
    assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert "cannot roll orders-0 in /data" in str(error)
    assert log.directory.failure is None
    log.storage_error("roll", OSError(errno.EIO, "Input/output error"))
    assert log.directory.failure is not None
