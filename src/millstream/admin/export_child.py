"""The child process of an export: reads a request from stdin, writes the file to stdout.

The request is a line of JSON (`export_process`). If the export fails, the last line on stderr is a
message for the user, and the exit code is 1; or `EXIT_REFUSED` if a broker refused it, and the
message begins with the name of the error. When stdin ends, the process stops: its parent is gone
or not interested.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from millstream.admin.browsing import Asked, Start, records
from millstream.admin.exporting import EXIT_REFUSED, csv_lines, json_lines, parquet
from millstream.admin.reading import Reader
from millstream.client.cluster import Cluster
from millstream.client.security import Security, security_settings
from millstream.errors import ApiError, MillstreamError

CLIENT_ID = "millstream-export"
NICE = 10
MEMORY_BYTES_MAX = 2 * 1024**3
BYTES_MAX = 4 * 1024**3
SECONDS_MAX = 3600.0
WRITERS: dict[str, Callable[[str, Any], Iterator[bytes]]] = {
    "json": json_lines,
    "csv": csv_lines,
    "parquet": parquet,
}


def asked_of(fields: dict[str, Any]) -> Asked:
    """What `dataclasses.asdict` made of it, after JSON."""
    positions = {int(partition): offset for partition, offset in fields["positions"].items()}
    given = {"start": Start(fields["start"]), "partitions": tuple(fields["partitions"])}
    return Asked(**{**fields, **given, "positions": positions})


def export(given: dict[str, Any], write: Callable[[bytes], object]) -> None:
    topic = given["topic"]
    cluster = Cluster(
        given["bootstrap_servers"],
        client_id=CLIENT_ID,
        security=Security.from_settings(security_settings(given["settings"])),
        missing_topic_seconds=2.0,
    )
    with cluster:
        reader = Reader(
            cluster, topic, kept_bytes=None, bytes_max=BYTES_MAX, seconds_max=SECONDS_MAX
        )
        found = records(cluster, topic, asked_of(given["asked"]), reader)
        for chunk in WRITERS[given["kind"]](topic, found):
            write(chunk)


def main() -> None:
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    given = json.loads(sys.stdin.buffer.readline())

    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        export(given, sys.stdout.buffer.write)
        sys.stdout.buffer.flush()
    except ApiError as error:
        print(error.code.name, one_line(error.message or ""), file=sys.stderr, flush=True)
        os._exit(EXIT_REFUSED)
    except (MillstreamError, OSError, MemoryError) as error:
        print(one_line(str(error)) or type(error).__name__, file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def one_line(text: str) -> str:
    return " ".join(text.splitlines())


if __name__ == "__main__":
    main()
