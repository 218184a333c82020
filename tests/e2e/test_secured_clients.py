"""What clients need to be allowed, and no more: the table of docs/guides/security.md."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from millstream.client import topics as client_topics
from millstream.client.cluster import Cluster
from millstream.client.security import Security
from millstream.client.topics import create_topics
from millstream.connect.capture.capture import Capture
from millstream.connect.capture.settings import CaptureSettings
from millstream.connect.sinks.config import parse_config
from millstream.connect.sinks.runner import SinkRunner
from millstream.errors import ApiError, MillstreamError
from millstream.events.event import Event, Origin
from millstream.events.handler import stored_events
from millstream.events.log import EventLog
from tests.peers.cache import PeerMissing
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.postgres import start_postgres
from tests.peers.secured import ADMIN, Secured, start_secured
from tests.peers.secured_clients import KINDS, admin_of, allow, settings_of


class World(NamedTuple):
    secured: Secured
    directory: Path

    def client(self, user: str, **more: Any) -> dict[str, Any]:
        settings = Security.from_settings(settings_of(self.secured, user)).librdkafka()
        quiet = {"log_level": 0, "bootstrap.servers": self.secured.address("SASL_SSL")}
        return {**settings, **quiet, **{name.replace("_", "."): it for name, it in more.items()}}


EVENT_USERS = ["events", "events-0", "events-1", "events-2"]


class Refused(Exception):
    """The client could not do it."""


@pytest.fixture(scope="module", params=KINDS)
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("secured")
    settings = {"group.initial.rebalance.delay.ms": "0"}
    users = [f"{user}-{number}" for user in CASES for number in range(len(CASES[user].rights))]
    running = start_secured(
        request.param, directory, [*CASES, *users, "capturer", "looker", *EVENT_USERS], settings
    )
    try:
        admin = admin_of(running)
        for future in admin.create_topics([NewTopic("t", 1), NewTopic("rows", 1)]).values():
            future.result(PATIENCE_SECONDS)
        earliest = ConfigEntry(
            "share.auto.offset.reset",
            "earliest",
            incremental_operation=AlterConfigOpType.SET,
        )
        resource = ConfigResource(ConfigResource.Type.GROUP, "sg", incremental_configs=[earliest])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(PATIENCE_SECONDS)
        world = World(running, directory)
        send(world, "admin", "t", b"one")
        send(world, "admin", "rows", b'{"id": 1}')
        send(world, "admin", "rows", b"bad")
        yield world
    finally:
        running.stop()


def send(world: World, user: str, topic: str, value: bytes, **more: Any) -> None:
    failures: list[KafkaError] = []
    producer = Producer(world.client(user, **more))
    producer.produce(topic, value, on_delivery=lambda error, _: error and failures.append(error))
    producer.flush(PATIENCE_SECONDS)
    if failures:
        raise Refused(failures[0].name())


def produce(world: World, user: str) -> None:
    send(world, user, "t", b"more")
    send(world, user, "t", b"more", enable_idempotence=True)


def transact(world: World, user: str) -> None:
    consumer = Consumer(world.client(user, group_id="txn-group"))
    producer = Producer(world.client(user, transactional_id="txn-1"))
    try:
        producer.init_transactions(PATIENCE_SECONDS)
        producer.begin_transaction()
        producer.produce("t", b"more")
        producer.flush(PATIENCE_SECONDS)
        metadata = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction(
            [TopicPartition("t", 0, 1)], metadata, PATIENCE_SECONDS
        )
        producer.commit_transaction(PATIENCE_SECONDS)
    finally:
        consumer.close()


def consume(world: World, user: str) -> None:
    consumer = Consumer(world.client(user, group_id="cg", auto_offset_reset="earliest"))
    try:
        consumer.subscribe(["t"])
        first_value(lambda: [consumer.poll(1.0)])
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def share(world: World, user: str) -> None:
    consumer = ShareConsumer(world.client(user, group_id="sg"))
    try:
        consumer.subscribe(["t"])
        first_value(lambda: consumer.poll(1.0))
        consumer.commit_sync(PATIENCE_SECONDS)
    finally:
        consumer.close()


def first_value(poll: Callable[[], list[Any]]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for message in poll():
            if message is None:
                continue
            if message.error() is not None:
                raise Refused(message.error().name())
            return
    raise Refused("nothing came")


def sink(world: World, user: str) -> None:
    database = world.directory / f"{user}.db"
    config = parse_config(
        {
            "name": "rows",
            "broker": world.secured.address("SASL_SSL"),
            "to": f"sqlite:///{database}",
            "format": "json",
            "topics": {"rows": {"key": "id", "columns": "id long"}},
            "kafka": settings_of(world.secured, user),
        }
    )
    SinkRunner(config).run(once=True)
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT id FROM rows").fetchall() == [(1,)]


def source_events(world: World, user: str) -> None:
    security = settings_of(world.secured, user)
    with EventLog(world.secured.address("SASL_SSL"), "events", security=security) as log:
        log.check_conditional()
        partition = log.partition_of(user)
        offset = log.append(partition, stored_events(user, 0, [Event("made")], Origin("command")))
        assert len(list(log.events(partition, offset, offset + 1))) == 1


class Case(NamedTuple):
    act: Callable[[World, str], None]
    rights: list[str]


CASES: Mapping[str, Case] = {
    "producer": Case(produce, ["WRITE topic t"]),
    "transactor": Case(
        transact,
        [
            "WRITE topic t",
            "READ topic t",
            "WRITE transactional_id txn-1",
            "READ group txn-group",
        ],
    ),
    "consumer": Case(consume, ["READ topic t", "READ group cg"]),
    "sharer": Case(share, ["READ topic t", "READ group sg"]),
    "sinker": Case(sink, ["READ topic rows", "WRITE topic dlq.rows", "CREATE topic dlq.rows"]),
}


EVENT_RIGHTS = ["READ topic events", "WRITE topic events", "DESCRIBE_CONFIGS topic events"]


def test_event_sourcing_needs_its_rights_and_no_others(world: World) -> None:
    if world.secured.kind != "millstream":
        pytest.skip("conditional append is Millstream's")
    with EventLog(
        world.secured.address("SASL_SSL"), "events", security=settings_of(world.secured, ADMIN)
    ) as log:
        log.create()
    for number, left_out in enumerate(EVENT_RIGHTS):
        allow(world.secured, f"events-{number}", [it for it in EVENT_RIGHTS if it != left_out])
        with pytest.raises(MillstreamError, match="the user needs"):
            source_events(world, f"events-{number}")
    allow(world.secured, "events", EVENT_RIGHTS)
    eventually(lambda: source_events(world, "events"))


@pytest.mark.parametrize("user", CASES)
def test_client_needs_its_rights_and_no_others(world: World, user: str) -> None:
    act, rights = CASES[user]
    for number, left_out in enumerate(rights):
        poor = f"{user}-{number}"
        allow(world.secured, poor, [it for it in rights if it != left_out])
        with pytest.raises((Refused, KafkaException, MillstreamError)):
            act(world, poor)
    allow(world.secured, user, rights)
    eventually(lambda: act(world, user))


def eventually(act: Callable[[], None]) -> None:
    """Brokers learn of rights a moment later."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            act()
            return
        except (Refused, KafkaException, MillstreamError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def test_existing_topics_need_no_right_to_create_them(world: World) -> None:
    allow(world.secured, "looker", ["DESCRIBE topic t"])
    security = settings_of(world.secured, "looker")
    with Cluster(world.secured.address("SASL_SSL"), security=security) as cluster:
        eventually(lambda: create_topics(cluster, [client_topics.NewTopic("t")]))
        with pytest.raises(ApiError, match=r"create topic new: .*; the user needs Create on the"):
            create_topics(cluster, [client_topics.NewTopic("new")])


CAPTURE_RIGHTS = [
    "WRITE topic shop.*",
    "CREATE topic shop.*",
    "READ topic shop.capture",
    "WRITE transactional_id millstream-capture-shop",
]


def test_capture_needs_its_rights_and_no_others(world: World) -> None:
    try:
        postgres = start_postgres("fsync=off", "wal_level=logical")
    except PeerMissing as missing:
        pytest.skip(str(missing))
    psycopg = pytest.importorskip("psycopg")
    try:
        url = postgres.new_database()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE orders (id int PRIMARY KEY)")
            connection.execute("INSERT INTO orders VALUES (1), (2)")
        settings = CaptureSettings(
            name="shop",
            database=url,
            tables=["public.orders"],
            broker=world.secured.address("SASL_SSL"),
            security=settings_of(world.secured, "capturer"),
        )
        with pytest.raises(MillstreamError, match=r"the user needs Describe .* on the topic"):
            Capture.of(settings).run()
        allow(world.secured, "capturer", CAPTURE_RIGHTS)
        eventually(lambda: capture_two_rows(settings))
    finally:
        postgres.remove()


def capture_two_rows(settings: CaptureSettings) -> None:
    capture = Capture.of(settings)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            capture.run()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while thread.is_alive() and capture.progress.rows_copied < 2:
        assert time.monotonic() < deadline, "nothing was captured"
        time.sleep(0.05)
    capture.stop()
    thread.join()
    if failures:
        raise failures[0]
