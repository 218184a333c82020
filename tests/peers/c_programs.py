"""Our programs in C: senders of StatsD and MoldUDP64."""

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
    source = PROGRAMS / "c" / "senders.c"

    def build(directory: Path) -> None:
        compiler = require_command("cc", "install a C compiler, e.g. `apt-get install gcc`")
        run_build([compiler, "-O2", "-o", directory / "senders", source], directory)

    return cached("senders", fingerprint(source), build) / "senders"
