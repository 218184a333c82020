"""Every kind of target follows its topic exactly once, whatever happens to either."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from millstream.client.cluster import Cluster
from millstream.connect.sinks import BadRecordFound, OutOfStep, SinkConfig, SinkRunner
from millstream.connect.sinks.opening import open_sink
from millstream.connect.sinks.positions import Place, Position, PositionMoved
from millstream.connect.sinks.reading import stable_end, timestamp_at
from millstream.connect.sinks.sink import Sink, Write
from millstream.testing.pytest_plugin import SharedBroker
from tests.connect.sinks.conftest import TRUNCATE, Derived, Log, delete_row, set_row, wait_for
from tests.peers.patience import PATIENCE_SECONDS

# All targets do all of this in `make test-all`; one that is a file and one that is a server always.
pytestmark = pytest.mark.slow_with("fts5", "redis", "duckdb", "delta", "parquet")
OTHERS = {"table": "others"}


def run_once(config: SinkConfig) -> SinkRunner:
    runner = SinkRunner(config)
    runner.run(once=True)
    return runner


def test_rows_follow_inserts_updates_deletes_and_tombstones(derived: Derived, log: Log) -> None:
    log.put((1, "one"), (2, "two"), (3, "three"), (4, "four"))
    config = derived.config(log)
    run_once(config)
    assert derived.rows() == {1: "one", 2: "two", 3: "three", 4: "four"}
    log.send(set_row(1, "uno"), delete_row(2), ({"id": 3}, None), set_row(5, "five"))
    log.send(delete_row(5), set_row(5, "fifth"), delete_row(99))
    run_once(config)
    assert derived.rows() == {1: "uno", 4: "four", 5: "fifth"}
    log.send(set_row(6, "six"), TRUNCATE, set_row(7, "seven"))
    run_once(config)
    assert derived.rows() == {7: "seven"}


def test_run_without_new_records_changes_nothing(derived: Derived, log: Log) -> None:
    log.put((1, "one"))
    config = derived.config(log)
    assert run_once(config).progress.records == 1
    assert run_once(config).progress.records == 0
    assert derived.rows() == {1: "one"}


def test_aborted_records_are_not_applied(derived: Derived, log: Log) -> None:
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": log.bootstrap, "transactional.id": log.topic}
    producer = Producer(settings)
    producer.init_transactions(60)
    for name, commits in (("kept", True), ("aborted", False)):
        producer.begin_transaction()
        producer.produce(log.topic, key=b"1", value=f'{{"id": 1, "name": "{name}"}}'.encode())
        producer.flush(60)
        if commits:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
    config = derived.config(log, format="json")
    with Cluster(log.bootstrap) as cluster:  # markers are written after the answer
        wait_for(lambda: stable_end(cluster, Place(log.topic, 0)) == 4)
    run_once(config)
    assert derived.rows() == {1: "kept"}
    with open_sink(config) as sink:  # past the markers, too
        sink.open()
        assert sink.positions()[Place(log.topic, 0)].offset == 4


def test_replayed_write_is_refused(derived: Derived, log: Log) -> None:
    """A zombie that wakes up with a write in its hands."""
    log.put((1, "old"))
    config = derived.config(log)
    written = capture_writes(config)
    log.put((1, "new"))
    run_once(config)
    with open_sink(config) as zombie:
        zombie.open()
        with pytest.raises(PositionMoved, match="at offset 2, the write begins at no offset"):
            zombie.apply(written[0])
    assert derived.rows() == {1: "new"}


def capture_writes(config: SinkConfig) -> list[Write]:
    """Run to the end, and return what was written."""
    kind, written = type(open_sink(config)), list[Write]()
    original = kind.apply

    def apply(sink: Sink, write: Write) -> None:
        original(sink, write)
        written.append(write)

    kind.apply = apply  # type: ignore[method-assign, assignment]
    try:
        run_once(config)
    finally:
        kind.apply = original  # type: ignore[method-assign]
    return written


def test_two_runners_at_once_apply_every_record_once(derived: Derived, log: Log) -> None:
    config = derived.config(log)
    stop, failures = threading.Event(), list[BaseException]()

    def follow() -> None:
        try:
            SinkRunner(config, stop=stop).run()
        except Exception as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    runners = [threading.Thread(target=follow) for _ in range(2)]
    for runner in runners:
        runner.start()
    for number in range(40):
        log.send(set_row(number % 7, f"version-{number}"), delete_row((number + 3) % 7))
    run_once(config)  # a third one, to the end
    stop.set()
    for runner in runners:
        runner.join(PATIENCE_SECONDS)
    assert failures == []
    expected: dict[int, str] = {}
    for number in range(40):
        expected[number % 7] = f"version-{number}"
        expected.pop((number + 3) % 7, None)
    assert derived.rows() == expected


def test_recreated_topic_stops_the_sink_until_it_is_rebuilt(derived: Derived, log: Log) -> None:
    log.put((1, "old"), (2, "old"), (3, "old"))
    config = derived.config(log)
    run_once(config)
    log.recreate()
    log.put((1, "new"))
    with pytest.raises(OutOfStep, match=r"deleted and created again.*--rebuild"):
        run_once(config)
    assert derived.rows() == {1: "old", 2: "old", 3: "old"}
    SinkRunner(config).rebuild()
    assert derived.rows() == {1: "new"}
    log.put((2, "new"))
    run_once(config)
    assert derived.rows() == {1: "new", 2: "new"}


def test_topic_recreated_under_a_running_sink_stops_it(derived: Derived, log: Log) -> None:
    log.put((1, "old"))
    config = derived.config(log)
    applied, failures = threading.Event(), list[BaseException]()

    def follow() -> None:
        try:
            SinkRunner(config, report=lambda it: applied.set() if it.records else None).run()
        except OutOfStep as error:
            failures.append(error)

    runner = threading.Thread(target=follow)
    runner.start()
    assert applied.wait(PATIENCE_SECONDS)
    log.recreate()
    log.put((2, "new"), (3, "new"), (4, "new"))
    runner.join(PATIENCE_SECONDS)
    assert [str(it) for it in failures if "created again" in str(it)]
    assert derived.rows() == {1: "old"}


def test_dropped_target_is_filled_from_the_beginning(derived: Derived, log: Log) -> None:
    log.put((1, "one"), (2, "two"))
    config = derived.config(log)
    run_once(config)
    derived.drop()
    log.put((3, "three"))
    run_once(config)
    assert derived.rows() == {1: "one", 2: "two", 3: "three"}


def test_target_created_again_by_hand_is_filled_from_the_beginning(
    derived: Derived, log: Log
) -> None:
    log.put((1, "one"), (2, "two"))
    run_once(derived.config(log))
    derived.recreate()
    log.put((3, "three"))
    run_once(derived.config(log))
    assert derived.rows() == {1: "one", 2: "two", 3: "three"}


def test_target_created_again_with_rows_is_refused(derived: Derived, log: Log) -> None:
    """The rows may be of keys that the topic has deleted."""
    log.put((1, "one"), (2, "two"))
    run_once(derived.config(log))
    derived.recreate()
    derived.insert(7, "seven")
    with pytest.raises(OutOfStep, match=r"'items'.* have rows.*--rebuild"):
        run_once(derived.config(log))
    assert derived.rows() == {7: "seven"}
    SinkRunner(derived.config(log)).rebuild()
    assert derived.rows() == {1: "one", 2: "two"}
    run_once(derived.config(log))


def test_target_dropped_under_a_running_sink_is_filled_again(derived: Derived, log: Log) -> None:
    log.put((1, "one"), (2, "two"))
    stop, progressed = threading.Event(), threading.Event()
    failures = list[BaseException]()

    def follow() -> None:
        try:
            SinkRunner(
                derived.config(log),
                stop=stop,
                report=lambda it: it.records == 2 and progressed.set(),  # nothing is being written
            ).run()
        except Exception as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    runner = threading.Thread(target=follow)
    runner.start()
    assert progressed.wait(PATIENCE_SECONDS)
    derived.drop()
    log.put((3, "three"))
    wait_for(lambda: not runner.is_alive() or _rows(derived) == {1: "one", 2: "two", 3: "three"})
    stop.set()
    runner.join(PATIENCE_SECONDS)
    assert failures == []
    assert derived.rows() == {1: "one", 2: "two", 3: "three"}


def _rows(derived: Derived) -> Any:
    try:
        return derived.rows()
    except Exception:  # noqa: BLE001 - the target is not there at this moment
        return None


def test_older_copy_of_a_target_catches_up(derived: Derived, log: Log) -> None:
    config = derived.config(log)
    log.put((1, "one"), (2, "two"))
    run_once(config)
    derived.back_up()
    log.send(set_row(1, "changed"), delete_row(2), set_row(3, "three"))
    run_once(config)
    derived.restore()
    assert derived.rows() == {1: "one", 2: "two"}
    assert run_once(config).progress.records == 3  # those since then, not all
    assert derived.rows() == {1: "changed", 3: "three"}


def test_records_deleted_before_they_were_applied_stop_the_sink(derived: Derived, log: Log) -> None:
    config = derived.config(log)
    log.put((1, "one"))
    run_once(config)
    log.put((2, "two"), (3, "three"))
    log.delete_before(3)
    log.put((4, "four"))
    with pytest.raises(OutOfStep, match="at offset 1, and the log has offsets 3 to 4"):
        run_once(config)


def test_rebuild_replaces_the_rows_at_once_and_a_running_sink_goes_on(
    derived: Derived, log: Log
) -> None:
    config = derived.config(log)
    log.put((1, "one"), (2, "two"))
    stop = threading.Event()
    runner = threading.Thread(target=lambda: SinkRunner(config, stop=stop).run())
    runner.start()
    wait_for(lambda: _rows(derived) == {1: "one", 2: "two"})
    SinkRunner(config).rebuild()
    assert derived.rows() == {1: "one", 2: "two"}
    log.send(delete_row(1), set_row(3, "three"))
    wait_for(lambda: _rows(derived) == {2: "two", 3: "three"})
    stop.set()
    runner.join(PATIENCE_SECONDS)
    SinkRunner(config).rebuild()  # again, beside what the first one left
    assert derived.rows() == {2: "two", 3: "three"}


def test_bad_records_go_to_dead_letters_and_the_others_are_applied(
    derived: Derived, log: Log
) -> None:
    from tests.connect.sinks.letters import letters_in

    log.send(set_row(1, "one"), (b"2", b"{broken"), (b"x", {"op": "c", "after": {"name": "no id"}}))
    log.send((None, None), set_row(4, "four"))
    config = derived.config(log)
    runner = run_once(config)
    rows = derived.rows()
    assert rows.get(1) == "one"
    assert rows.get(4) == "four"
    found = letters_in(log.bootstrap, f"dlq.{log.topic}", runner.progress.bad)
    assert ("malformed", log.topic, "0", "1", "shop", b"{broken") in found


def test_bad_record_stops_the_sink_if_it_must_not_be_skipped(derived: Derived, log: Log) -> None:
    log.send(set_row(1, "one"), (b"2", b"{broken"))
    config = derived.config(log, bad_records="fail")
    with pytest.raises(BadRecordFound, match=f"{log.topic}-0 offset 1: malformed: the value is"):
        run_once(config)
    log.send(set_row(3, "three"))
    run_once(derived.config(log, bad_records="drop"))
    assert derived.rows() == {1: "one", 3: "three"}


def test_column_that_rows_do_not_have_is_reported_once(
    derived: Derived, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    log.send(*(({"id": it}, {"op": "u", "after": {"id": it, "title": "new"}}) for it in range(3)))
    log.send(delete_row(2))
    run_once(derived.config(log, topic={"table": "items"}))
    reported = [it.getMessage() for it in caplog.records if "--rebuild" in it.getMessage()]
    is_declared = bool(derived.topic_options)
    assert len(reported) == is_declared
    if is_declared:
        assert f"{log.topic}-0 offset 0: the row has no 'name'" in reported[0]


def test_unchanged_values_are_kept(derived: Derived, log: Log) -> None:
    """An update without a large value that it leaves unchanged."""
    placeholder = "__debezium_unavailable_value"
    log.put((1, "one"), (2, "two"))
    config = derived.config(log)
    run_once(config)
    log.send(set_row(1, placeholder), set_row(2, "2"), set_row(2, placeholder))
    log.send(set_row(9, placeholder))
    runner = run_once(config)
    if open_sink(config).keeps_history:
        assert derived.rows() == {1: None, 2: None, 9: None}
        assert runner.progress.bad == 0
    else:
        assert derived.rows() == {1: "one", 2: "2"}
        assert runner.progress.bad == 1


def test_tombstones_that_compaction_may_have_removed_stop_the_sink(
    derived: Derived, log: Log
) -> None:
    config = derived.config(log)
    log.put((1, "one"))
    run_once(config)
    log.set("cleanup.policy", "compact")
    log.set("delete.retention.ms", "1")
    run_once(config)  # it has everything, however old that is
    log.put((2, "two"))
    log.set("delete.retention.ms", "86400000")
    with open_sink(config) as sink:
        sink.open()
        written = sink.written_at(sink.targets[0])
    assert written is not None
    assert abs(time.time() - written) < PATIENCE_SECONDS
    log.set("delete.retention.ms", "1")
    with pytest.raises(OutOfStep, match=r"keeps tombstones for 0 seconds.*--rebuild"):
        run_once(config)
    SinkRunner(config).rebuild()
    assert derived.rows() == {1: "one", 2: "two"}


def test_write_of_one_topic_does_not_renew_the_time_of_another(
    derived: Derived, log: Log, millstream: SharedBroker
) -> None:
    """So that tombstones of a topic that was left out for a while are missed."""
    other = Log(log.bootstrap, millstream.unique_topic("shop.others"))
    log.put((1, "one"))
    other.put((2, "two"))
    config = derived.config(log)
    both = replace(config, topics=(*config.topics, *derived.config(other, topic=OTHERS).topics))
    run_once(both)
    with open_sink(both) as sink:
        sink.open()
        here, there = sink.targets
        first = sink.written_at(there)

    def writes_are_apart() -> bool:
        log.put((1, "again"))
        run_once(config)
        with open_sink(both) as sink:
            sink.open()
            assert sink.written_at(there) == first
            return sink.written_at(here) != first

    wait_for(writes_are_apart)


def test_position_identifies_the_record_before_it(derived: Derived, log: Log) -> None:
    log.put((1, "one"), (2, "two"))
    run_once(derived.config(log))
    with open_sink(derived.config(log)) as sink, Cluster(log.bootstrap) as cluster:
        sink.open()
        place = Place(log.topic, 0)
        found = sink.positions()[place]
        assert (found.offset, found.epoch) == (
            2,
            cluster.topic(log.topic).partitions[0].leader_epoch,
        )
        assert found.timestamp == timestamp_at(cluster, place, 1) > 0


def test_target_that_is_filled_from_a_shortened_log_is_refused(derived: Derived, log: Log) -> None:
    log.put((1, "one"), (2, "two"))
    log.delete_before(1)
    with pytest.raises(OutOfStep, match=r"begins at offset 1.*resnapshot.*--allow-partial"):
        run_once(derived.config(log))
    run_once(derived.config(log, allow_partial=True))
    assert derived.rows() == {2: "two"}
    log.put((3, "three"))
    run_once(derived.config(log))  # it has a position now
    with pytest.raises(OutOfStep, match="begins at offset 1"):
        SinkRunner(derived.config(log)).rebuild()
    assert derived.rows() == {2: "two", 3: "three"}
    SinkRunner(derived.config(log, topic={"allow_partial": True})).rebuild()
    assert derived.rows() == {2: "two", 3: "three"}


def test_compacted_log_may_begin_later(derived: Derived, log: Log) -> None:
    """Records of rows that changed since are superfluous."""
    log.put((1, "one"), (1, "uno"))
    log.delete_before(1)
    log.set("cleanup.policy", "compact")
    run_once(derived.config(log))
    assert derived.rows() == {1: "uno"}


def test_target_that_was_in_step_all_the_time_continues(derived: Derived, log: Log) -> None:
    """Its last write is marked with the time, also if no records come."""
    log.set("cleanup.policy", "compact")
    log.set("delete.retention.ms", "100")
    config = derived.config(log)
    log.put((1, "one"))
    run_once(config)
    stop = threading.Event()
    runner = threading.Thread(target=lambda: SinkRunner(config, stop=stop).run())
    runner.start()
    try:
        with open_sink(config) as sink:
            sink.open()
            (target,) = sink.targets
            first = sink.written_at(target)
            wait_for(lambda: sink.written_at(target) != first)
            assert sink.positions()[Place(log.topic, 0)].offset == 1
        log.put((2, "two"))
        wait_for(lambda: _rows(derived) == {1: "one", 2: "two"})
    finally:
        stop.set()
        runner.join(PATIENCE_SECONDS)


def test_partitions_are_followed_independently(derived: Derived, log: Log) -> None:
    log.admin.delete_topics([log.topic])[log.topic].result(60)
    log.create(partitions=3)
    log.put(*((number, f"v{number}") for number in range(30)))
    config = derived.config(log)
    run_once(config)
    assert derived.rows() == {number: f"v{number}" for number in range(30)}
    with open_sink(config) as sink:
        sink.open()
        positions = sink.positions()
    assert sum(it.offset for it in positions.values()) == 30
    assert all(isinstance(it, Position) for it in positions.values())


def test_partition_that_is_empty_at_first_is_followed(derived: Derived, log: Log) -> None:
    log.admin.delete_topics([log.topic])[log.topic].result(60)
    log.create(partitions=2)
    config = derived.config(log, patience_seconds=PATIENCE_SECONDS / 4)
    log.send(set_row(1, "one"), partition=0)
    run_once(config)
    log.send(set_row(2, "two"), partition=0)
    run_once(config)
    log.send(set_row(3, "three"), partition=1)
    assert run_once(config).progress.conflicts == 0
    assert derived.rows() == {1: "one", 2: "two", 3: "three"}
