"""`millstream pipelines` against a real broker, and pipelines that only publish."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from millstream.admin.following import TopicFollower, write_records
from millstream.admin.pipeline_records import (
    ABOUT,
    COMMANDS_TOPIC,
    STATUS,
    STATUS_TOPIC,
    About,
    Command,
    Published,
    decode,
    encode,
)
from millstream.admin.pipelines import create_status_topics
from millstream.client.cluster import Cluster
from tests.cli.conftest import Run

Ok = Callable[..., str]


@pytest.fixture
def name() -> str:
    return f"p-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def cluster(bootstrap_servers: str) -> Iterator[Cluster]:
    with Cluster(bootstrap_servers) as cluster:
        create_status_topics(cluster)
        yield cluster


def put(cluster: Cluster, name: str, state: str = "working", run: str = "r1") -> None:
    about = About(name, "1", name, run, does=("stop", "restart"), host="here", process=7)
    status = Published(
        name,
        run,
        state,
        60_000,
        lag=1234,
        batch_ms=56,
        rows_per_second=7.0,
        watermark_ms=time.time_ns() // 1_000_000 - 5_000,
        late={"window": 3},
    )
    write_records(
        cluster,
        STATUS_TOPIC,
        [(f"{ABOUT}{name}", encode(about)), (f"{STATUS}{name}", encode(status))],
    )


def test_pipelines_are_listed(ok: Ok, cluster: Cluster, name: str) -> None:
    put(cluster, name)
    (line,) = [it for it in ok("pipelines", "list").splitlines() if name in it]
    for word in ("working", "1,234", "56 ms", "s behind", "here:7"):
        assert word in line
    listed = json.loads(ok("pipelines", "list", "--json"))
    (found,) = [it for it in listed if it["about"]["identity"] == name]
    assert (found["state"], found["status"]["lag"]) == ("working", 1234)


@pytest.mark.parametrize("action", ["stop", "restart"])
def test_command_is_sent_to_the_run(
    cli: Run, ok: Ok, cluster: Cluster, name: str, action: str
) -> None:
    put(cluster, name)
    assert f"{name} was asked to {action}" in ok("pipelines", action, name, "--wait", "0")
    commands = [
        decode(Command, it.value or b"")
        for it in TopicFollower(COMMANDS_TOPIC).read(cluster)
        if it.key == name.encode()
    ]
    assert [(it.action, it.run) for it in commands] == [(action, "r1")]
    late = cli("pipelines", action, name, "--wait", "0.1")
    assert late.exit_code == 1
    assert "it was asked to" in late.err


def test_stop_and_restart_return_when_that_is_done(
    ok: Ok, cluster: Cluster, bootstrap_servers: str, name: str
) -> None:
    """A thread does what a pipeline would do."""
    put(cluster, name)
    follower = TopicFollower(COMMANDS_TOPIC, from_end=True)
    list(follower.read(cluster))

    def obey() -> None:
        with Cluster(bootstrap_servers) as own:
            for state, run in (("stopped", "r1"), ("waiting", "r2")):
                while not any(it.key == name.encode() for it in follower.read(own)):
                    time.sleep(0.05)
                put(own, name, state, run)

    pipeline = threading.Thread(target=obey, daemon=True)
    pipeline.start()
    assert ok("pipelines", "stop", name) == f"stopped {name}\n"
    assert ok("pipelines", "restart", name) == f"restarted {name}\n"
    pipeline.join()


def test_unknown_pipeline_and_one_that_runs_are_refused(
    cli: Run, ok: Ok, cluster: Cluster, name: str
) -> None:
    put(cluster, name)
    unknown = cli("pipelines", "stop", "nobody")
    assert unknown.exit_code == 1
    assert "there is no pipeline nobody" in unknown.err
    running = cli("pipelines", "forget", name)
    assert running.exit_code == 1
    assert "is running: stop it first" in running.err
    put(cluster, name, "stopped")
    assert f"forgot {name}" in ok("pipelines", "forget", name)
    assert name not in ok("pipelines", "list")
