"""A server to be killed: `python -m tests.rpc.killed_server ADDRESS TOPIC FILE PAUSE`.

Each call of its function has a result of its own, so that a reply tells which call it is of. The
function writes what it does to the file, and waits for so many seconds in the middle.
"""

from __future__ import annotations

import sys
import time
import uuid
from pathlib import Path

from millstream.rpc import Request, Server


def main(address: str, topic: str, path: str, pause: str) -> None:
    def handle(request: Request) -> str:
        result = uuid.uuid4().hex
        assert request.correlation_id is not None
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{request.correlation_id.hex()} {result}\n")
        time.sleep(float(pause))
        return result

    server = Server(address, topic, handle, settings={"session.timeout.ms": "6000"})
    print("ready", flush=True)
    server.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
