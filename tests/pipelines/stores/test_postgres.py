"""PostgreSQL's own side: servers that restart, crash, are away or refuse; staging left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest

from millstream.connect.tables.rows import make_ready
from millstream.connect.tables.schema import layout_of
from millstream.errors import StoreError
from millstream.pipelines.stores import TableSpec, open_store, postgres
from millstream.pipelines.stores.postgres import PostgresStore, StagedTable
from millstream.pipelines.stores.spec import BatchMark
from millstream.pipelines.stores.staging import fill_stage, stage_prefix
from tests.peers.cache import PeerMissing
from tests.peers.postgres import PostgresServer, start_postgres
from tests.peers.servers import free_port
from tests.pipelines.stores.conftest import Database

TABLE = TableSpec("log", mode="append")
STAGES = "SELECT relname FROM pg_class WHERE relname LIKE 'millstream_stage%'"

CUT_WAITING_INSERT = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE query LIKE 'INSERT%' AND wait_event_type = 'Lock'"""


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that the test may stop and start."""
    try:
        server = start_postgres()
    except PeerMissing as missing:
        pytest.skip(str(missing))
    yield server
    server.remove()


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def test_server_that_restarts_is_waited_for(own_server: PostgresServer) -> None:
    with open_store(own_server.url) as store:
        store.write_arrow([(rows(0), TABLE)], 0, "q")
        for batch_id, end in ((1, own_server.stop), (2, own_server.crash)):
            end()
            start = threading.Timer(0.5, own_server.start)
            start.start()
            assert store.write_arrow([(rows(batch_id), TABLE)], batch_id, "q")
            start.join()
    assert Database(own_server.url).rows("SELECT n FROM log ORDER BY n") == [(0,), (1,), (2,)]


def test_connection_cut_in_the_transaction_is_tried_again(postgres_database: Database) -> None:
    with open_store(postgres_database.url) as store:
        store.write_arrow([(rows(0), TABLE)], 0, "q")
        with psycopg.connect(postgres_database.url) as other:
            other.execute("LOCK TABLE log")  # the writer waits in its merge
            writer = threading.Thread(
                target=lambda: store.write_arrow([(rows(1), TABLE)], 1, "q"), daemon=True
            )
            writer.start()
            with psycopg.connect(postgres_database.url, autocommit=True) as killer:
                cut = (
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'INS%'"
                )
                while not killer.execute(cut + " AND wait_event_type = 'Lock'").fetchall():
                    pass
        writer.join(60)
        assert store.last_batch("q") == 1
    assert postgres_database.rows("SELECT n FROM log ORDER BY n") == [(0,), (1,)]


def test_commit_whose_answer_was_lost_is_not_repeated(
    postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave = psycopg.Transaction.__exit__
    lost = iter([True])

    def commit_and_lose_the_answer(self: psycopg.Transaction, *exception: object) -> object:
        result = leave(self, *exception)  # type: ignore[arg-type]
        if next(lost, False):
            self.connection.close()
            raise psycopg.OperationalError("the connection is lost")
        return result

    with open_store(postgres_database.url) as store:
        store.write_arrow([(rows(0), TABLE)], 0, "q")
        monkeypatch.setattr(psycopg.Transaction, "__exit__", commit_and_lose_the_answer)
        store.write_arrow([(rows(1), TABLE)], 1, "q")
        assert next(lost, None) is None
    assert postgres_database.rows("SELECT n FROM log ORDER BY n") == [(0,), (1,)]


def test_staged_rows_that_a_crash_emptied_are_noticed(own_server: PostgresServer) -> None:
    with open_store(own_server.url) as store:
        assert isinstance(store, PostgresStore)
        batch = rows(1, 2, 3)
        layout = layout_of(batch.schema, TABLE)
        store.prepare(batch.schema, TABLE)
        epoch = store.claim("q")
        name = f"{stage_prefix('q')}{epoch}_x"
        fill_stage(own_server.url, name, make_ready(batch, layout), layout)
        own_server.crash()
        own_server.start()
        mark = BatchMark("q", 0)
        with pytest.raises(postgres.StageLost):
            store._merge([([StagedTable(name, 3)], layout)], mark)
        with pytest.raises(postgres.StageLost):
            store._merge([([StagedTable(f"{name}_never", 3)], layout)], mark)
        assert store.last_batch("q") is None
        fill_stage(own_server.url, name, make_ready(batch, layout), layout)
        assert store._merge([([StagedTable(name, 3)], layout)], mark)
    assert Database(own_server.url).rows("SELECT count(*) FROM log") == [(3,)]


def test_leftovers_are_dropped_by_the_next_run_and_by_no_older_one(
    postgres_database: Database,
) -> None:
    layout = layout_of(rows(1).schema, TABLE)
    ready = make_ready(rows(1), layout)
    with open_store(postgres_database.url) as older, open_store(postgres_database.url) as newer:
        assert isinstance(older, PostgresStore)
        old, new = older.claim("q"), newer.claim("q")
        names = [f"{stage_prefix('q')}{epoch}_abc_0_0" for epoch in (old, new)]
        names.append(f"{stage_prefix('another query')}1_abc_0_0")
        for name in names:
            fill_stage(postgres_database.url, name, ready, layout)
        older._drop_stages("q", old)
        assert sorted(postgres_database.rows(STAGES)) == sorted((name,) for name in names[1:])
    with open_store(postgres_database.url) as third:
        third.claim("q")
    assert postgres_database.rows(STAGES) == [(names[2],)]


def test_server_that_is_not_there_is_reported_at_once() -> None:
    store = open_store(f"postgresql://millstream@127.0.0.1:{free_port()}/postgres")
    with pytest.raises(StoreError, match=r"cannot be used as a store.*(refused|failed)"):
        store.last_batch("q")


def test_password_is_not_in_the_message(postgres: PostgresServer) -> None:
    url = postgres.url.replace("millstream@", "nobody:secret@")
    with pytest.raises(StoreError, match=r"role .*nobody") as raised:
        open_store(url).last_batch("q")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("column", "complaint"),
    [
        (pa.array(["a\0b"]), "NUL characters"),
        (pa.array([["a\0b"]]), "u0000"),
    ],
)
def test_value_that_postgresql_cannot_hold_is_reported_with_a_cure(
    postgres_database: Database, column: pa.Array, complaint: str
) -> None:
    table = TableSpec("texts", mode="append")
    with open_store(postgres_database.url) as store:
        with pytest.raises(StoreError, match=f"batch 0 into 'texts'.*{complaint}"):
            store.write_arrow([(pa.table({"text": column}), table)], 0, "q")
        assert store.last_batch("q") is None


def test_two_runs_may_start_at_the_same_time(postgres_database: Database) -> None:
    failures: list[BaseException] = []

    def start(number: int) -> None:
        try:
            with open_store(postgres_database.url) as store:
                store.write_arrow([(rows(number), TABLE)], 0, f"query {number}")
        except BaseException as failure:  # noqa: BLE001
            failures.append(failure)

    threads = [threading.Thread(target=start, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert postgres_database.rows("SELECT count(*) FROM log") == [(6,)]
