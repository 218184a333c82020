"""A capture as a process, which kills itself at a named point: `driver SETTINGS [POINT:COUNT ...]`.

With COUNT it dies when it reaches the point for the COUNT-th time. Nothing of this is in what is
tested.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from functools import wraps
from typing import Any

from millstream.client.producing import RawProducer
from millstream.connect.capture.capture import Capture
from millstream.connect.capture.output import Output
from millstream.connect.capture.replication import Receiver, ReplicationConnection

# What a capture does, and how the places before and after it are called.
POINTS: dict[str, tuple[Any, str]] = {
    "open": (Output, "open"),
    "state": (Output, "commit_state"),
    "slot": (ReplicationConnection, "create_slot"),
    "start": (ReplicationConnection, "start"),
    "send": (RawProducer, "send"),
    "commit": (RawProducer, "end"),
    "confirm": (Receiver, "confirm"),
}
NAMES = [f"{when} {name}" for name in POINTS for when in ("before", "after")]


def install(kills: dict[str, int]) -> None:
    reached: Counter[str] = Counter()

    def reach(point: str) -> None:
        reached[point] += 1
        if kills.get(point) == reached[point]:
            os.kill(os.getpid(), signal.SIGKILL)

    for name, (owner, method) in POINTS.items():
        original = getattr(owner, method)

        def wrapped(*args: Any, name: str = name, original: Any = original, **named: Any) -> Any:
            reach(f"before {name}")
            result = original(*args, **named)
            reach(f"after {name}")
            return result

        setattr(owner, method, wraps(original)(wrapped))


def main() -> None:
    kills = {}
    for argument in sys.argv[2:]:
        point, _, count = argument.partition(":")
        assert point in NAMES, point
        kills[point] = int(count)
    install(kills)
    Capture(**json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    main()
