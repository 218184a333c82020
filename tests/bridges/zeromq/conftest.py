"""Peers of other programs: plain pyzmq sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from tests.bridges.conftest import PATIENCE_SECONDS

PATIENCE_MS = int(PATIENCE_SECONDS * 1000)


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    """All its sockets are closed at the end."""
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made.setsockopt(zmq.LINGER, 0)
    made.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
    made.setsockopt(zmq.SNDTIMEO, PATIENCE_MS)
    yield made
    made.destroy()


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)
