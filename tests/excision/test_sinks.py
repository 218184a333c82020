"""Sinks lose what they have of excised records, and go on where they were."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer

from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.connect.sinks import SinkRunner, load_config
from millstream.errors import ConfigError, MillstreamError
from millstream.excision.documents import KEY, WHERE, DerivedPlan, Job, Selector
from millstream.excision.history import History
from millstream.excision.jobs import begin, finish
from millstream.excision.looking import REBUILD, ROWS
from millstream.excision.selection import Access, find_topic
from millstream.excision.sinks import plan_sink
from millstream.excision.verification import verify_receipt
from tests.excision.conftest import ALICE, NUMBERS
from tests.peers.patience import PATIENCE_SECONDS


class Scene:
    """A topic of customers, keyed by name, and a sink of it."""

    def __init__(self, cluster: Cluster, access: Access, directory: Path) -> None:
        self.cluster, self.access, self.directory = cluster, access, directory
        self.topic = f"customers-{next(NUMBERS)}"
        self.file = directory / "sink.toml"
        self.path = directory / "derived.db"
        create_topics(cluster, [NewTopic(self.topic, 2)])
        self._producer = Producer({"bootstrap.servers": access.bootstrap_servers})

    def put(self, *names: str, city: str = "Bath") -> None:
        for name in names:
            value = json.dumps({"name": name, "city": city, "email": f"{name}@example.org"})
            self._producer.produce(self.topic, value, name)
        assert self._producer.flush(PATIENCE_SECONDS) == 0

    def declare(self, scheme: str = "sqlite", key: str = "name") -> None:
        options = 'columns = "name string, city string, email string"'
        if scheme == "fts5":
            options = 'fields = ["email"]\nstored = ["name", "city"]'
        self.file.write_text(
            f'name = "copy"\nbroker = "{self.access.bootstrap_servers}"\n'
            f'to = "{scheme}:///{self.path}"\nformat = "json"\n'
            f'[topics."{self.topic}"]\ntable = "customers"\nkey = "{key}"\n{options}\n'
        )

    def follow(self) -> None:
        SinkRunner(load_config(self.file)).run(once=True)

    def rows(self) -> dict[str, str]:
        with closing(sqlite3.connect(self.path)) as connection:
            return dict(connection.execute("SELECT name, city FROM customers").fetchall())

    def plan(self, selector: Selector = ALICE) -> DerivedPlan:
        return plan_sink(self.cluster, self.file, [self.topic], selector)

    def begin(self, derived: Sequence[DerivedPlan]) -> Job:
        plan = find_topic(self.cluster, self.topic, ALICE, access=self.access)
        return begin(self.cluster, [plan], ALICE, requested_by="test", derived=derived)

    def lose_history(self, before: int = 1) -> None:
        """As retention does: the partitions no longer begin at 0. -1: all records are gone."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.access.bootstrap_servers})
        places = [TopicPartition(self.topic, it, before) for it in (0, 1)]
        for done in admin.delete_records(places).values():
            done.result(PATIENCE_SECONDS)


@pytest.fixture
def scene(cluster: Cluster, access: Access, tmp_path: Path) -> Scene:
    return Scene(cluster, access, tmp_path)


def test_rebuilt_sink_has_nothing_of_the_key_and_goes_on(scene: Scene) -> None:
    scene.declare("fts5")
    scene.put("alice", "bob", "carol")
    scene.follow()
    plan = scene.plan()
    assert (plan.how, plan.tables, plan.store) == (REBUILD, ("customers",), f"fts5:///{scene.path}")
    job = scene.begin([plan])
    receipt = finish(scene.cluster, job, timeout_seconds=PATIENCE_SECONDS, selector=ALICE)
    (report,) = receipt.derived
    assert (report["rows_before"], report["rows_after"]) == ({"customers": 3}, {"customers": 2})
    assert scene.rows() == {"bob": "Bath", "carol": "Bath"}
    files = [it for it in scene.directory.rglob("*") if it.is_file()]
    assert not any(b"alice@example.org" in it.read_bytes() for it in files)
    verified = verify_receipt(scene.cluster, receipt, selector=ALICE, access=scene.access)
    assert (verified.problems, verified.unseen) == ([], [])
    scene.put("alice", "dora")  # she is a customer again
    scene.follow()
    assert sorted(scene.rows()) == ["alice", "bob", "carol", "dora"]
    verified = verify_receipt(scene.cluster, receipt, selector=ALICE, access=scene.access)
    assert verified.problems == []


def test_rows_of_the_key_are_deleted_where_the_log_has_lost_its_beginning(scene: Scene) -> None:
    scene.declare()
    scene.put("erin", "frank", "gina", "hugo", "ivan", "alice", "bob")
    scene.follow()
    rows = scene.rows()
    scene.lose_history()
    plan = scene.plan()
    assert plan.how == ROWS
    scene.put("bob", city="York")
    job = scene.begin([plan])
    scene.put("alice", city="Leeds")  # after the request
    scene.follow()
    with pytest.raises(MillstreamError, match=f"resume {job.id} --key"):
        finish(scene.cluster, job, timeout_seconds=PATIENCE_SECONDS)
    with pytest.raises(MillstreamError, match="of another key"):
        finish(scene.cluster, job, timeout_seconds=PATIENCE_SECONDS, selector=Selector(KEY, b"bob"))
    receipt = finish(scene.cluster, job, timeout_seconds=PATIENCE_SECONDS, selector=ALICE)
    assert scene.rows() == rows | {"bob": "York", "alice": "Leeds"}
    scene.follow()
    assert scene.rows() == rows | {"bob": "York", "alice": "Leeds"}
    verified = verify_receipt(scene.cluster, receipt, selector=ALICE, access=scene.access)
    assert verified.problems == []


def test_later_records_may_be_lost_to_retention(scene: Scene) -> None:
    """After the request: then nothing tells where a row of the key came from."""
    scene.declare()
    scene.put("erin", "frank", "gina", "hugo", "ivan", "alice", "bob")
    scene.follow()
    scene.lose_history()
    plan = scene.plan()
    assert plan.how == ROWS
    job = scene.begin([plan])
    scene.put("alice", "carol", "dora", city="Leeds")
    scene.follow()
    scene.lose_history(before=-1)
    receipt = finish(scene.cluster, job, timeout_seconds=PATIENCE_SECONDS, selector=ALICE)
    assert "alice" not in scene.rows()
    scene.put("alice")
    scene.follow()
    verified = verify_receipt(scene.cluster, receipt, selector=ALICE, access=scene.access)
    assert (verified.problems, verified.unseen) == ([], [])
    scene.lose_history(before=-1)
    verified = verify_receipt(scene.cluster, receipt, selector=ALICE, access=scene.access)
    reason = "perhaps from later records, which are no longer in the log"
    assert verified.unseen == [f"customers of sink copy has 1 row of the key, {reason}"]
    assert verified.problems == []


def test_row_that_came_back_is_found_by_verify(scene: Scene) -> None:
    """From an older copy of the table; also before it has caught up."""
    scene.declare()
    scene.put("alice", "bob")
    scene.follow()
    job = scene.begin([scene.plan()])
    receipt = finish(scene.cluster, job, timeout_seconds=PATIENCE_SECONDS)
    with closing(sqlite3.connect(scene.path)) as connection:
        connection.execute("INSERT INTO customers VALUES ('alice', 'Bath', 'alice@example.org')")
        connection.execute("UPDATE millstream_positions SET next_offset = 0")
        connection.commit()
    found = verify_receipt(scene.cluster, receipt, selector=ALICE, access=scene.access).problems
    assert any("has 1 row of the key" in it for it in found)
    assert any("an older copy was restored" in it for it in found)


def test_job_that_was_begun_elsewhere_is_resumed_there(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A relative address is another database in another directory."""
    scene.declare()
    scene.put("alice", "bob")
    scene.follow()
    job = scene.begin([scene.plan()])
    with monkeypatch.context() as elsewhere:
        elsewhere.chdir(tmp_path_factory.mktemp("elsewhere"))
        with pytest.raises(MillstreamError, match=f"run there `millstream excise resume {job.id}`"):
            finish(scene.cluster, job, timeout_seconds=PATIENCE_SECONDS)
        assert "alice" in scene.rows()
    receipt = finish(scene.cluster, job, timeout_seconds=PATIENCE_SECONDS)
    assert scene.rows() == {"bob": "Bath"}
    with monkeypatch.context() as elsewhere:
        elsewhere.chdir(tmp_path_factory.mktemp("elsewhere"))
        verified = verify_receipt(scene.cluster, receipt, access=scene.access)
    assert [it.partition(":")[0] for it in verified.unseen] == ["sink copy"]
    assert History(scene.cluster).derived(job)[0]["state"] == "done"


def test_sinks_that_cannot_be_reached_are_refused_with_the_plan(scene: Scene) -> None:
    scene.declare(key="email")
    scene.put("alice", "bob", "carol", "dora", "erin")
    with pytest.raises(ConfigError, match="reads none of other"):
        plan_sink(scene.cluster, scene.file, ["other"], ALICE)
    assert scene.plan(Selector(WHERE, b"true")).how == REBUILD
    scene.lose_history()
    with pytest.raises(ConfigError, match="only for --key"):
        scene.plan(Selector(WHERE, b"true"))
    scene.put("alice")
    with pytest.raises(ConfigError, match="have the email of the value, which is not the key"):
        scene.plan()  # a tombstone of "alice" would not delete the row of alice@example.org
    scene.file.write_text(scene.file.read_text().replace('"email"', '["name", "email"]', 1))
    with pytest.raises(ConfigError, match="does not tell the name, email of a row"):
        scene.plan()


def test_row_whose_key_is_that_of_another_record_may_stay(scene: Scene) -> None:
    """The key of a row comes from the value: "alice" is a city here, too."""
    scene.declare(key="city")
    scene.put("alice", "bob")
    scene.put("carol", city="alice")
    scene.follow()
    job = scene.begin([scene.plan()])
    receipt = finish(scene.cluster, job, timeout_seconds=PATIENCE_SECONDS, selector=ALICE)
    assert scene.rows() == {"bob": "Bath", "carol": "alice"}
    assert receipt.derived[0]["selected_after"]["customers"]["rows"] == 1
    verified = verify_receipt(scene.cluster, receipt, selector=ALICE, access=scene.access)
    assert verified.problems == []
    scene.put("dora", city="alice")  # the same row, from another record
    scene.follow()
    assert scene.rows() == {"bob": "Bath", "dora": "alice"}
    verified = verify_receipt(scene.cluster, receipt, selector=ALICE, access=scene.access)
    assert verified.problems == []
