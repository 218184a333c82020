"""What pipelines publish about themselves: without Spark on a real broker, and with it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from millstream.admin.pipeline_board import Board, Shown
from millstream.admin.pipelines import PipelineFollower, read_pipelines, send_command
from millstream.client.cluster import Cluster
from millstream.pipelines import Pipeline, pipeline, table, topic
from millstream.pipelines.running import publishing
from millstream.pipelines.running.publishing import (
    Publisher,
    command_line,
    finish,
    publish,
    without_password,
)
from millstream.pipelines.running.runner import Run, with_defaults
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.running.status import Status
from tests.peers.servers import Server, start_millstream
from tests.pipelines.conftest import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECONDS_MAX = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start_millstream(tmp_path_factory.mktemp("publishing") / "data")
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statuses come often, so that tests need not wait for them."""
    monkeypatch.setattr(publishing, "TICK_SECONDS", 0.1)


@pytest.fixture
def declared() -> Pipeline:
    name = f"p{time.time_ns()}"
    return pipeline(reads=topic("t", schema="id long"), writes=table("t"), name=name)(
        lambda frame: frame
    )


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def query(**changes: Any) -> Any:
    """What Spark has of a query that runs."""
    made = SimpleNamespace(
        id="q-1",
        name="p",
        isActive=True,
        status={"isTriggerActive": False},
        lastProgress=None,
        recentProgress=[],
        exception=lambda: None,
    )
    made.stop = lambda: setattr(made, "isActive", False)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def settings_for(server: Server, tmp_path: Path, **changes: Any) -> Settings:
    return replace(with_defaults(Settings(home=tmp_path, broker=server.bootstrap)), **changes)


def follow(
    address: str, identity: str, is_so: Callable[[Shown], bool], follower: PipelineFollower
) -> Shown:
    """The pipeline as it is published, when it is so."""
    deadline = time.monotonic() + SECONDS_MAX
    with Cluster(address) as cluster:
        while time.monotonic() < deadline:
            for it in follower.update(cluster).pipelines(now_ms()):
                if it.identity == identity and is_so(it):
                    return it
            time.sleep(0.05)
    raise AssertionError(f"{identity} was not published so: {follower.board.pipelines(now_ms())}")


def published(server: Server, declared: Pipeline, is_so: Callable[[Shown], bool]) -> Shown:
    return follow(server.bootstrap, declared.name, is_so, PipelineFollower())


def start(declared: Pipeline, settings: Settings, made: Any, **changes: Any) -> None:
    given: dict[str, Any] = {"once": False, "control": None, "explain": lambda: None}
    publish(declared, settings, made, **given | changes)


def test_query_is_published_until_it_ends(
    server: Server, declared: Pipeline, tmp_path: Path
) -> None:
    made = query()
    start(declared, settings_for(server, tmp_path, store="postgresql://a:pw@db/x"), made)
    shown = published(server, declared, lambda it: it.state == "waiting")
    assert shown.about.does == ("stop",)
    assert (shown.about.reads, shown.about.writes, shown.about.query_id) == (("t",), ("t",), "q-1")
    assert shown.about.store == "postgresql://a@db/x"
    assert shown.about.nodes == ()
    made.isActive = False
    finish()
    assert published(server, declared, lambda it: it.state == "stopped").status.every_ms == 0


def test_query_that_fails_says_why(server: Server, declared: Pipeline, tmp_path: Path) -> None:
    reason = "No space left on device while writing 'ada' to 't'"
    made = query(isActive=False, exception=lambda: RuntimeError(reason))
    start(declared, settings_for(server, tmp_path), made)
    shown = published(server, declared, lambda it: it.state == "failed")
    assert "the disk is full" in shown.status.error
    assert "while writing '…' to 't'" in shown.status.error  # a value, and a topic


def test_query_of_a_session_that_is_gone_has_stopped(
    server: Server, declared: Pipeline, tmp_path: Path
) -> None:
    class Gone:
        id = "q-1"

        @property
        def lastProgress(self) -> Any:  # noqa: N802
            raise ConnectionRefusedError("the JVM has ended")

    start(declared, settings_for(server, tmp_path), Gone())
    published(server, declared, lambda it: it.state == "stopped")


def test_query_that_runs_once_is_done_and_cannot_be_stopped(
    server: Server, declared: Pipeline, tmp_path: Path
) -> None:
    start(declared, settings_for(server, tmp_path), query(isActive=False), once=True)
    shown = published(server, declared, lambda it: it.state == "done")
    assert shown.about.does == ()


def test_nothing_is_published_if_it_is_turned_off(
    server: Server, declared: Pipeline, tmp_path: Path
) -> None:
    start(declared, settings_for(server, tmp_path, publish_status=False), query())
    other = replace(declared, name=f"{declared.name}-other")
    start(other, settings_for(server, tmp_path), query(isActive=False))
    published(server, other, lambda it: it.state == "stopped")
    with Cluster(server.bootstrap) as cluster:
        assert declared.name not in {it.identity for it in read_pipelines(cluster, now_ms())}


def test_query_is_stopped_by_a_command_for_its_run_alone(
    server: Server, declared: Pipeline, tmp_path: Path
) -> None:
    made = query()
    start(declared, settings_for(server, tmp_path), made)
    shown = published(server, declared, lambda it: it.does("stop"))
    with Cluster(server.bootstrap) as cluster:
        of_another = replace(shown, status=replace(shown.status, run="another"))
        send_command(cluster, of_another, "stop")
        later = published(server, declared, lambda it: it.at_ms > shown.at_ms)
        assert later.state == "waiting"
        send_command(cluster, shown, "stop")
    published(server, declared, lambda it: it.state == "stopped")
    assert not made.isActive


def test_commands_go_to_whoever_can_start_the_query_again(
    server: Server, declared: Pipeline, tmp_path: Path
) -> None:
    asked: list[tuple[str, str]] = []
    control = SimpleNamespace(is_open=True, ask=lambda *given: asked.append(given))
    made = query()
    start(declared, settings_for(server, tmp_path), made, control=control)
    shown = published(server, declared, lambda it: it.does("restart"))
    with Cluster(server.bootstrap) as cluster:
        send_command(cluster, shown, "restart")
        published(server, declared, lambda it: it.state == "stopping")
        assert asked == [(declared.name, "restart")]
        made.isActive = False
        stopped = published(server, declared, lambda it: it.state == "stopped")
        assert stopped.status.every_ms  # it is there, and waits
        again = query()
        start(declared, settings_for(server, tmp_path), again, control=control)
        started = published(server, declared, lambda it: it.state == "waiting")
        assert started.status.run != shown.status.run
    control.is_open = again.isActive = False
    finish()
    assert published(server, declared, lambda it: it.state == "stopped").status.every_ms == 0


def test_thread_ends_with_its_last_query(
    server: Server, declared: Pipeline, tmp_path: Path
) -> None:
    settings = settings_for(server, tmp_path)
    start(declared, settings, query(isActive=False))
    (publisher,) = [
        it for (address, _), it in publishing._publishers.items() if address == server.bootstrap
    ]
    publisher.join(SECONDS_MAX)
    assert not publisher.is_alive()
    start(declared, settings, query(isActive=False))  # another thread takes over
    assert publishing._publishers[server.bootstrap, ()] is not publisher


def test_without_a_cluster_the_pipeline_goes_on_and_it_is_said_once(
    declared: Pipeline, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    monkeypatch.setattr(publishing, "TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(publishing, "RETRY_SECONDS_MAX", 0.05)
    made = query()
    settings = with_defaults(Settings(home=tmp_path, broker="127.0.0.1:1"))
    with caplog.at_level(logging.DEBUG, logger=publishing.__name__):
        start(declared, settings, made)
        deadline = time.monotonic() + SECONDS_MAX
        while len(caplog.records) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
    levels = [it.levelno for it in caplog.records]
    assert levels[0] == logging.WARNING
    assert set(levels[1:]) == {logging.DEBUG}
    assert "publish_status = false" in caplog.text
    made.isActive = False
    publisher = publishing._publishers["127.0.0.1:1", ()]
    publisher.join(SECONDS_MAX)
    assert not publisher.is_alive()


def test_process_that_exits_says_so(server: Server, declared: Pipeline, tmp_path: Path) -> None:
    settings = settings_for(server, tmp_path)
    publisher = Publisher(settings)
    publishing._publishers["exiting", ()] = publisher
    entry = publishing.Entry(
        declared,
        settings,
        publishing.Watched(declared.identity, query(), declared),
        False,
        None,
        None,
    )
    publisher.add(entry)
    publisher.start()
    published(server, declared, lambda it: it.state == "waiting")
    publisher.finish(time.monotonic() + SECONDS_MAX, is_exiting=True)
    assert published(server, declared, lambda it: it.state == "stopped").status.every_ms == 0
    del publishing._publishers["exiting", ()]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ada:se@cr/et@db:5432/shop?password=x", "postgresql://ada@db:5432/shop"),
        ("postgresql://ada@db/shop", "postgresql://ada@db/shop"),
        ("sqlite:////data/a@b/store.db", "sqlite:////data/a@b/store.db"),
    ],
)
def test_passwords_are_not_published(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_command_line_is_ours_or_not_published() -> None:
    assert command_line(["/usr/bin/millstream", "run", "a b.py"]) == "millstream run 'a b.py'"
    given = ["millstream", "run", "x.py", "--store", "postgresql://a:secret@db/x"]
    assert command_line(given) == "millstream run x.py --store postgresql://a@db/x"
    assert command_line(["/opt/job.py", "--token", "secret"]) == ""
    assert command_line([]) == ""


# With Spark


@pytest.fixture
def counting(topics: Topics) -> Pipeline:
    name = topics.create()
    topics.fill(name, [b'{"id": 1}', b'{"id": 2}', b"bad"])

    def both(frame: DataFrame) -> dict[str, DataFrame]:
        """Counts."""
        return {"all": frame, "one": frame.where("id = 1")}

    return pipeline(
        reads=topic(name, schema="id long"),
        writes={"all": table("everything"), "one": table("ones")},
        name=f"count-{name}",
    )(both)


def test_running_pipeline_is_stopped_and_restarted_from_elsewhere(
    spark: SparkSession, counting: Pipeline, topics: Topics, tmp_path: Path
) -> None:
    settings = with_defaults(Settings(home=tmp_path, broker=topics.bootstrap))
    follower = PipelineFollower()
    steps: list[str] = []
    run = Run([counting], spark, settings, once=False)

    def conduct(statuses: list[Status]) -> None:
        """Step by step, by what is published."""
        with Cluster(topics.bootstrap) as cluster:
            board: Board = follower.update(cluster)
            for it in board.pipelines(now_ms()):
                if it.identity != counting.name:
                    continue
                if not steps and it.status.rows == 3:
                    assert_published(it)
                    send_command(cluster, it, "stop")
                    steps.append(it.status.run)
                elif len(steps) == 1 and it.state == "stopped":
                    send_command(cluster, it, "restart")
                    steps.append("restart")
                elif len(steps) == 2 and it.status.run != steps[0] and it.is_running:
                    steps.append("again")
                    run._stopping.set()

    run.until_end(conduct)
    assert steps[1:] == ["restart", "again"]
    ended = follow(topics.bootstrap, counting.name, lambda it: it.state == "stopped", follower)
    assert ended.status.every_ms == 0


def assert_published(shown: Shown) -> None:
    (source,) = shown.status.sources.values()
    assert (source.rows, source.bad, source.lag) == (3, 1, 0)
    assert {name: it.rows for name, it in shown.status.outputs.items()} == {"all": 2, "one": 1}
    kinds = [it.kind for it in shown.about.nodes]
    assert sorted(kinds) == ["letters", "sink", "sink", "source"]
    assert shown.about.description == "Counts."
    assert shown.about.does == ("stop", "restart")
