"""Following the status topic of a real broker, and commands to pipelines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from millstream.admin.following import TopicFollower, write_records
from millstream.admin.pipeline_records import (
    ABOUT,
    COMMANDS_TOPIC,
    STATUS,
    STATUS_SETTINGS,
    STATUS_TOPIC,
    About,
    Command,
    Published,
    decode,
    encode,
)
from millstream.admin.pipelines import (
    PipelineFollower,
    create_status_topics,
    find_pipeline,
    forget_pipeline,
    read_pipelines,
    send_command,
    wait_for,
)
from millstream.client.cluster import Cluster
from millstream.errors import ConfigError
from tests.peers.servers import Server, start_millstream

ABOUT_SALES = About("sales", "1", "sales", "r1", "q1", does=("stop", "restart"))
SALES = Published("sales", "r1", "working", 4_000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start_millstream(tmp_path_factory.mktemp("pipelines") / "data")
    yield running
    running.stop()


@pytest.fixture
def cluster(server: Server) -> Iterator[Cluster]:
    """With the topics, and nothing in them."""
    with Cluster(server.bootstrap) as cluster:
        delete_topics(cluster)
        create_status_topics(cluster)
        yield cluster


def delete_topics(cluster: Cluster) -> None:
    names = [it for it in cluster.refresh() if it in (STATUS_TOPIC, COMMANDS_TOPIC)]
    asked = {"topics": [{"name": it} for it in names], "timeout": 30_000}
    if names:
        cluster.any_connection().call("delete_topics", asked, version=6)
    while any(it in cluster.refresh() for it in names):
        time.sleep(0.01)
    cluster.forget_all()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def put(cluster: Cluster, *records: About | Published) -> None:
    write_records(
        cluster,
        STATUS_TOPIC,
        [
            (f"{ABOUT if isinstance(it, About) else STATUS}{it.identity}", encode(it))
            for it in records
        ],
    )


def test_topics_are_made_once_with_their_settings(cluster: Cluster) -> None:
    create_status_topics(cluster)
    asked = {
        "resource_type": 2,
        "resource_name": STATUS_TOPIC,
        "configuration_keys": list(STATUS_SETTINGS),
    }
    answer = cluster.any_connection().call("describe_configs", {"resources": [asked]})
    assert {it.name: it.value for it in answer.results[0].configs} == STATUS_SETTINGS


def test_follower_reads_what_is_there_and_what_comes(cluster: Cluster) -> None:
    follower = PipelineFollower()
    assert follower.update(cluster).pipelines(now_ms()) == []
    put(cluster, ABOUT_SALES, SALES)
    (shown,) = follower.update(cluster).pipelines(now_ms())
    assert (shown.identity, shown.state, shown.about) == ("sales", "working", ABOUT_SALES)
    put(cluster, replace(SALES, state="stopped", every_ms=0))
    assert follower.update(cluster, seconds_old_max=60).pipelines(now_ms())[0].state == "working"
    assert follower.update(cluster).pipelines(now_ms())[0].state == "stopped"
    assert [it.identity for it in read_pipelines(cluster, now_ms())] == ["sales"]


def test_without_topics_there_are_no_pipelines(cluster: Cluster) -> None:
    put(cluster, ABOUT_SALES, SALES)
    follower = PipelineFollower()
    assert follower.update(cluster).pipelines(now_ms())
    assert follower.exists
    delete_topics(cluster)
    assert follower.update(cluster).pipelines(now_ms()) == []
    assert not follower.exists


def test_topic_that_was_made_again_is_read_from_its_beginning(cluster: Cluster) -> None:
    put(cluster, ABOUT_SALES, SALES)
    follower = PipelineFollower()
    follower.update(cluster)
    delete_topics(cluster)
    create_status_topics(cluster)
    for name in ("other", "third", "fourth"):  # more records than there were before
        put(cluster, replace(SALES, identity=name))
    board = follower.update(cluster)
    assert [it.identity for it in board.pipelines(now_ms())] == ["fourth", "other", "third"]


def test_clock_of_a_pipeline_does_not_matter_to_whoever_sees_it_live(cluster: Cluster) -> None:
    clock = [now_ms()]
    follower = PipelineFollower(lambda: clock[0])
    follower.update(cluster)
    clock[0] += 10**9  # the reader's clock is far ahead
    put(cluster, SALES)
    assert follower.update(cluster).pipelines(clock[0])[0].state == "working"
    assert PipelineFollower(lambda: clock[0]).update(cluster).pipelines(clock[0])[0].is_lost


def test_command_names_its_run(cluster: Cluster) -> None:
    put(cluster, ABOUT_SALES, SALES)
    (shown,) = read_pipelines(cluster, now_ms())
    sent = send_command(cluster, shown, "stop", by="ada")
    (record,) = TopicFollower(COMMANDS_TOPIC).read(cluster)
    assert record.key == b"sales"
    assert decode(Command, record.value or b"") == sent
    assert (sent.identity, sent.run, sent.action, sent.by) == ("sales", "r1", "stop", "ada")


def test_commands_from_before_a_pipeline_began_are_not_read(cluster: Cluster) -> None:
    put(cluster, ABOUT_SALES, SALES)
    (shown,) = read_pipelines(cluster, now_ms())
    send_command(cluster, shown, "stop")
    follower = TopicFollower(COMMANDS_TOPIC, from_end=True)
    assert list(follower.read(cluster)) == []
    send_command(cluster, shown, "restart")
    (record,) = follower.read(cluster)
    assert b"restart" in (record.value or b"")
    assert list(follower.read(cluster)) == []


@pytest.mark.parametrize(
    ("about", "status", "action", "words"),
    [
        (ABOUT_SALES, replace(SALES, state="stopped"), "stop", "stopped already"),
        (ABOUT_SALES, replace(SALES, state="failed"), "restart", "its process has ended"),
        (replace(ABOUT_SALES, does=()), SALES, "stop", "takes no commands"),
        (replace(ABOUT_SALES, does=("stop",)), SALES, "restart", "started by a program"),
    ],
)
def test_command_that_nobody_would_take_is_refused(
    cluster: Cluster, about: About, status: Published, action: str, words: str
) -> None:
    put(cluster, about, status)
    (shown,) = read_pipelines(cluster, now_ms())
    with pytest.raises(ConfigError, match=words):
        send_command(cluster, shown, action)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no sign of life"):
        send_command(cluster, replace(shown, is_lost=True), action)  # type: ignore[arg-type]
    assert list(TopicFollower(COMMANDS_TOPIC).read(cluster)) == []


def test_forgotten_pipeline_is_gone_and_a_running_one_stays(cluster: Cluster) -> None:
    put(cluster, ABOUT_SALES, SALES)
    (shown,) = read_pipelines(cluster, now_ms())
    with pytest.raises(ConfigError, match="is running"):
        forget_pipeline(cluster, shown)
    put(cluster, replace(SALES, state="stopped", every_ms=0))
    forget_pipeline(cluster, find_pipeline(read_pipelines(cluster, now_ms()), "sales"))
    assert read_pipelines(cluster, now_ms()) == []


def test_pipeline_that_is_not_there_is_named_with_those_that_are(cluster: Cluster) -> None:
    put(cluster, SALES)
    with pytest.raises(ConfigError, match=r"no pipeline nothing \(known: sales\)"):
        find_pipeline(read_pipelines(cluster, now_ms()), "nothing")


def test_waiting_ends_when_it_is_so_or_in_time(cluster: Cluster) -> None:
    put(cluster, ABOUT_SALES, SALES)
    found = wait_for(cluster, "sales", lambda it: it.is_running, 60)
    assert found is not None
    assert wait_for(cluster, "sales", lambda it: not it.is_running, 0) is None
