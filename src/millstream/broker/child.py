"""The main module of a broker in a child process, for `Broker.start(in_process=False)`.

Reads one line of JSON, the settings, from standard input; writes one line of JSON, its addresses or
its error, to standard output; then serves until SIGTERM, or until standard input ends, which is how
it notices that its parent is gone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from millstream.broker.process import run
from millstream.broker.server import BrokerServer
from millstream.config.broker import BrokerConfig
from millstream.errors import MillstreamError


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    try:
        run(BrokerConfig.from_values(settings), ready=_tell_parent)
    except MillstreamError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        raise SystemExit(1) from None


def _tell_parent(server: BrokerServer) -> None:
    addresses = {
        "addresses": server.listener_addresses,
        "metrics_address": server.metrics_address,
    }
    print(json.dumps(addresses), flush=True)
    end_with_parent()


def end_with_parent() -> None:
    """Stop this process, cleanly, when standard input ends."""

    def watch() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main()
