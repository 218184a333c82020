"""A Millstream broker in a cluster of Apache Kafka's: `python -m tests.peers.mixed_broker`."""

from __future__ import annotations

import argparse
import functools
import logging
from pathlib import Path

from millstream.broker.process import run
from millstream.broker.server import BrokerServer
from millstream.config.broker import BrokerConfig
from tests.peers.kraft_home import KraftHome


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--controller", required=True)
    parser.add_argument("--cluster-id", required=True)
    parser.add_argument("--node-id", type=int, required=True)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    settings: dict[str, object] = {
        "node.id": options.node_id,
        "listeners": f"PLAINTEXT://{options.listen}",
        "log.dirs": str(options.data),
        "replica.fetch.backoff.ms": 100,
        "replica.lag.time.max.ms": 5_000,
    }
    open_home = functools.partial(KraftHome.open, options.controller, options.cluster_id)
    run(
        BrokerConfig.from_values(settings),
        build=lambda config: BrokerServer(config, open_metadata=open_home),
    )


if __name__ == "__main__":
    main()
