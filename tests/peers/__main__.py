"""Fetch and build every peer beforehand: `python -m tests.peers`. Says what is missing, and why."""

from __future__ import annotations

from functools import partial

from tests.peers.cache import PeerMissing
from tests.peers.clients import CLIENTS
from tests.peers.java_runtime import classpath
from tests.peers.share_consumers import SHARE_CLIENTS


def main() -> None:
    steps = {
        name: partial(classpath, name) for name in ("kafka", "kafka-streams", "opensearch", "trino")
    }
    steps |= {name: client.prepare for name, client in CLIENTS.items()}
    steps |= {f"{name} (share)": client.prepare for name, client in SHARE_CLIENTS.items()}
    for name, prepare in steps.items():
        try:
            prepare()
        except PeerMissing as missing:
            print(f"{name:16} missing: {missing}")
        else:
            print(f"{name:16} ready")


if __name__ == "__main__":
    main()
