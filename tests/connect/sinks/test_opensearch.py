"""A search server: versions, hidden documents, refused documents and the alias.

What it has in common with other targets is tested with the runner.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from confluent_kafka.admin import NewPartitions

from millstream.connect.sinks import SinkRunner
from millstream.connect.sinks import opensearch as module
from millstream.connect.sinks.opening import open_sink
from millstream.connect.sinks.opensearch import OpenSearchSink, Stored
from millstream.connect.sinks.positions import Place, Position, PositionMoved, Step
from millstream.errors import ConfigError
from tests.connect.sinks.conftest import Log, SearchServer, delete_row, set_row, wait_for
from tests.connect.sinks.letters import letters_in
from tests.connect.sinks.test_runner import capture_writes, run_once
from tests.peers.opensearch import OpenSearchServer
from tests.peers.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.java, pytest.mark.slow]


@pytest.fixture
def server(opensearch: OpenSearchServer) -> SearchServer:
    return SearchServer(opensearch)


def test_delete_stays_deleted_if_a_paused_process_writes_an_older_row(
    server: SearchServer, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the server has forgotten the versions of deleted documents."""
    config = server.config(log)
    log.put((1, "old"))
    with open_sink(config) as zombie:
        assert isinstance(zombie, OpenSearchSink)
        zombie.open()
        seen = zombie._stored(zombie.targets[0])
        written = capture_writes(config)
        log.send(delete_row(1), set_row(2, "two"))
        run_once(config)
        server.ask("PUT", "/items/_settings", {"index": {"gc_deletes": "0ms"}})
        monkeypatch.setattr(zombie, "_stored", lambda target: seen)  # it was paused after this
        with pytest.raises(PositionMoved):
            zombie.apply(written[0])
    assert server.rows() == {2: "two"}


def test_document_that_the_mapping_refuses_is_a_dead_letter(server: SearchServer, log: Log) -> None:
    log.send((b"1", {"id": 1, "name": "one", "price": 1}))
    config = server.config(log, format="json")
    run_once(config)
    log.send(
        (b"2", {"id": 2, "name": "two", "price": "a lot"}),
        (b"1", {"id": 1, "name": "uno", "price": 2}),
        (b"1", {"id": 1, "name": "refused", "price": {}}),
        (b"x" * 600, {"id": "x" * 600, "name": "long key"}),
        (b"3", b'{"id": 3, "name": "three", "price": NaN}'),
        (b"4", {"id": 4, "name": "four"}),
    )
    runner = run_once(config)
    assert server.rows() == {1: "uno", 4: "four"}
    assert runner.progress.bad == 4
    found = letters_in(log.bootstrap, f"dlq.{log.topic}", 4)
    assert sorted((it[0], int(it[3])) for it in found) == [
        ("malformed", 1),
        ("malformed", 3),
        ("wrong type", 4),
        ("wrong type", 5),
    ]


def test_declared_fields_are_searched_and_others_are_stored(server: SearchServer, log: Log) -> None:
    log.send((b"1", {"id": 1, "name": "Red shoes", "price": 90, "secret": "x"}))
    config = server.config(log, format="json", topic={"fields": ["name"], "stored": ["id"]})
    run_once(config)
    (hit,) = server.hits()
    assert hit["_source"] == {"id": 1, "name": "Red shoes"}
    query = {"query": {"match": {"name": "SHOES"}}}
    assert server.ask("POST", "/items/_search", query)["hits"]["total"]["value"] == 1


def test_hidden_documents_are_not_found_and_are_deleted_in_the_end(
    server: SearchServer, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = server.config(log)
    log.put((1, "one"), (2, "two"))
    log.send(delete_row(1))
    run_once(config)
    (index,) = server.ask("GET", "/items")
    assert len(server.hits()) == 1
    kinds = sorted(it["_source"].get("__hidden", "") for it in server.hits(index))
    assert kinds == ["", "deleted", "position"]
    monkeypatch.setattr(module, "TOMBSTONE_SECONDS", -60.0)
    log.put((3, "three"))
    run_once(config)
    kinds = sorted(it["_source"].get("__hidden", "") for it in server.hits(index))
    assert kinds == ["", "", "position"]


def test_key_that_moves_to_a_new_partition_is_updated(server: SearchServer, log: Log) -> None:
    """The offsets of a new partition begin at 0, below those that the key had before."""
    config = server.config(log)
    log.put(*((number, "old") for number in range(20)))
    run_once(config)
    log.admin.create_partitions([NewPartitions(log.topic, 4)])[log.topic].result(60)
    log.put(*((number, "new") for number in range(20)))
    run_once(config)
    assert server.rows() == dict.fromkeys(range(20), "new")


def test_server_that_is_killed_is_waited_for(server: SearchServer, log: Log) -> None:
    stop = threading.Event()
    runner = threading.Thread(target=lambda: SinkRunner(server.config(log), stop=stop).run())
    runner.start()
    try:
        log.put(*((number, "first") for number in range(200)))
        server.server.kill()
        log.put(*((number, "second") for number in range(200)))
        server.server.start()
        wait_for(lambda: _rows(server) == dict.fromkeys(range(200), "second"))
    finally:
        stop.set()
        runner.join(PATIENCE_SECONDS)


def _rows(server: SearchServer) -> Any:
    try:
        return server.rows()
    except (AssertionError, OSError):
        return None


def test_rebuild_leaves_one_index_and_the_alias_on_it(server: SearchServer, log: Log) -> None:
    config = server.config(log)
    log.put((1, "one"))
    run_once(config)
    SinkRunner(config).rebuild()
    assert list(server.ask("GET", "/items*")) == ["items-000002"]
    assert server.rows() == {1: "one"}


def test_index_of_somebody_else_is_refused(server: SearchServer, log: Log) -> None:
    server.ask("PUT", "/items")
    with (
        open_sink(server.config(log)) as sink,
        pytest.raises(ConfigError, match="not an alias of one index"),
    ):
        sink.open()


def test_write_meant_for_the_index_before_a_rebuild_moves_no_position(
    server: SearchServer, log: Log
) -> None:
    config = server.config(log)
    log.put((1, "one"))
    written = capture_writes(config)
    with open_sink(config) as late:
        late.open()
        SinkRunner(config).rebuild()
        with pytest.raises(PositionMoved):
            late.apply(written[0])
        assert isinstance(late, OpenSearchSink)
        with pytest.raises(PositionMoved, match="after a rebuild"):
            late._bulk(
                late._indexes[log.topic],
                [module.Item({"index": {"_id": "9"}}, '{"id": 9}')],
            )


def test_new_partition_begins_above_all_versions() -> None:
    old, new = Place("t", 0), Place("t", 1)
    stored = Stored({old: Position("id", 70)}, {old: 5})
    assert stored.bases_after([Step(new, None, Position("id", 3))]) == {old: 5, new: 75}
