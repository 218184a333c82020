"""Runs an excision, and kills itself with SIGKILL at a step of it: before or after one of the calls
that leave something behind.

    python -m tests.excision.dying BOOTSTRAP TOPIC KEY STEP [--sink FILE] [--pipeline FILE:NAME]

Prints the names of the steps that it came to.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from millstream.client.cluster import Cluster
from millstream.connect.sinks.sqlite import SqliteSink
from millstream.excision import jobs, pipelines
from millstream.excision.derived import Places, plan_derived
from millstream.excision.documents import KEY, Selector
from millstream.excision.history import History
from millstream.excision.selection import Access, find_topic
from millstream.pipelines.running import runner
from millstream.pipelines.versions import removing

POINTS = (
    (History, "put_job"),
    (jobs, "append_to_setting"),
    (History, "put_derived"),
    (SqliteSink, "rebuilt"),
    (SqliteSink, "apply"),
    (SqliteSink, "switch"),
    (SqliteSink, "purge"),
    (pipelines, "_empty"),
    (removing, "delete_checkpoint"),
    (runner, "run"),
    (pipelines, "_purge"),
    (History, "append_receipt"),
)


def install(step: int) -> None:
    passed = 0

    def come_to(name: str) -> None:
        nonlocal passed
        passed += 1
        print(name, flush=True)
        if passed == step:
            os.kill(os.getpid(), signal.SIGKILL)

    for owner, name in POINTS:
        setattr(owner, name, _wrapped(getattr(owner, name), name, come_to))


def _wrapped(action: Callable[..., Any], name: str, come_to: Callable[[str], None]) -> Any:
    @wraps(action)
    def call(*arguments: Any, **named: Any) -> Any:
        come_to(f"before {name}")
        outcome = action(*arguments, **named)
        come_to(f"after {name}")
        return outcome

    return call


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "topic", "key"):
        parser.add_argument(name)
    parser.add_argument("step", type=int)
    parser.add_argument("--sink", type=Path, action="append", default=[])
    parser.add_argument("--pipeline", action="append", default=[])
    given = parser.parse_args()
    install(given.step)
    selector = Selector(KEY, given.key.encode())
    with Cluster(given.bootstrap) as cluster:
        places = Places(given.sink, given.pipeline)
        derived = plan_derived(cluster, places, [given.topic], selector, given.bootstrap)
        plan = find_topic(cluster, given.topic, selector, access=Access(given.bootstrap))
        job = jobs.begin(cluster, [plan], selector, requested_by="test", derived=derived.plans)
        jobs.finish(
            cluster,
            job,
            timeout_seconds=60.0,
            selector=selector,
            bootstrap_servers=given.bootstrap,
        )
    print("done", flush=True)


if __name__ == "__main__":
    main()
