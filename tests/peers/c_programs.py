"""Our programs in C: senders of StatsD and MoldUDP64, and ZeroMQ's own library."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from tests.peers.cache import PROGRAMS, PeerMissing, cached, fingerprint, require_command, run_build


@cache
def udp_sender() -> Path:
    """The compiled `c/senders.c`."""
    if sys.platform != "linux":
        raise PeerMissing("the senders in C are for Linux")
    return _compiled("senders")


@cache
def zeromq_peer() -> Path:
    """The compiled `c/zeromq.c`, with the system's libzmq."""
    try:
        return _compiled("zeromq", "-lzmq")
    except PeerMissing as missing:
        raise PeerMissing(f"{missing}; try: apt-get install gcc libzmq3-dev") from missing


def _compiled(name: str, *libraries: str) -> Path:
    source = PROGRAMS / "c" / f"{name}.c"

    def build(directory: Path) -> None:
        compiler = require_command("cc", "install a C compiler, e.g. `apt-get install gcc`")
        run_build([compiler, "-O2", "-o", directory / name, source, *libraries], directory)

    return cached(name, fingerprint(source), build) / name
