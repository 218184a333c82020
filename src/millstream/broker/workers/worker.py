"""The main module of a worker's process: one broker that shares its metadata with others.

Reads one line of JSON (`Assignment`) from standard input; writes one line of JSON, its ports or its
error, to standard output; then serves until SIGTERM, or until standard input ends, which is how it
notices that its parent is gone. It holds its presence lock as long as it lives.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import NamedTuple

from millstream import json_logs
from millstream.broker.child import end_with_parent
from millstream.broker.metadata.shared import open_shared
from millstream.broker.process import run
from millstream.broker.server import BrokerServer
from millstream.config.broker import BrokerConfig, Endpoint
from millstream.errors import DirectoryLocked, MillstreamError
from millstream.storage.filesystem import OsFileSystem


class Assignment(NamedTuple):
    """What a worker is started with."""

    worker: int
    settings: dict[str, str]
    cluster_directory: str
    presence_lock: str
    shared_listeners: list[Endpoint]

    def encode(self) -> bytes:
        return json.dumps(self).encode() + b"\n"

    @classmethod
    def decode(cls, line: str) -> Assignment:
        assignment = cls(*json.loads(line))
        listeners = [Endpoint(*fields) for fields in assignment.shared_listeners]
        return assignment._replace(shared_listeners=listeners)


def main() -> None:
    line = sys.stdin.readline()
    if line:  # otherwise it was a spare process that was not needed
        serve(Assignment.decode(line))


def serve(assignment: Assignment) -> None:
    config = BrokerConfig.from_values(assignment.settings)
    json_logs.configure(config.millstream_log_format, worker=assignment.worker)
    end_with_parent()
    try:
        lock = _take_presence(assignment)
        run(
            config,
            ready=_tell_parent,
            build=partial(
                BrokerServer,
                open_metadata=open_shared(assignment.cluster_directory),
                shared_listeners=assignment.shared_listeners,
            ),
        )
        OsFileSystem().close(lock)
    except MillstreamError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        raise SystemExit(1) from None


def _take_presence(assignment: Assignment) -> int:
    try:
        return OsFileSystem().lock(assignment.presence_lock)
    except BlockingIOError:
        raise DirectoryLocked(
            f"another process is worker {assignment.worker}: it holds {assignment.presence_lock}"
        ) from None


def _tell_parent(server: BrokerServer) -> None:
    answer = {"ports": server.listening_ports, "metrics": server.metrics_address}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
