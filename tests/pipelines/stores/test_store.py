"""What both stores promise: modes, deletes, progress, fencing, several tables at once."""

from __future__ import annotations

import json
import threading
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from millstream.errors import ConfigError, StoreError, WriterFenced
from millstream.pipelines.stores import Store, TableSpec, open_store
from tests.pipelines.stores.conftest import Database

USERS = TableSpec("users", ("id",))
WITH_DELETES = TableSpec("users", ("id",), delete="gone")


def users(*rows: tuple[int, str | None]) -> pa.Table:
    ids, names = zip(*rows, strict=True)
    return pa.table({"id": pa.array(ids, pa.int64()), "name": pa.array(names, pa.string())})


def marked(*rows: tuple[int, str | None, object]) -> pa.Table:
    return users(*(row[:2] for row in rows)).append_column("gone", [[row[2] for row in rows]])


def test_upsert_inserts_updates_and_keeps_the_last_row_of_a_key(
    store: Store, database: Database
) -> None:
    store.write_arrow([(users((1, "a"), (2, "b"), (1, "c")), USERS)], 0, "q")
    store.write_arrow([(users((3, "z"), (2, None)), USERS)], 1, "q")
    assert database.rows("SELECT * FROM users ORDER BY id") == [(1, "c"), (2, None), (3, "z")]


def test_upsert_of_a_table_that_is_all_key_inserts_once(store: Store, database: Database) -> None:
    table = TableSpec("seen", ("id", "name"))
    store.write_arrow([(users((1, "a"), (1, "b")), table)], 0, "q")
    store.write_arrow([(users((1, "b"), (2, "b")), table)], 1, "q")
    assert database.rows("SELECT * FROM seen ORDER BY 1, 2") == [(1, "a"), (1, "b"), (2, "b")]


@pytest.mark.parametrize("words", [(True, False, None), ("d", "u", None), ("DELETE", "c", "r")])
def test_upsert_deletes_what_is_marked(
    store: Store, database: Database, words: tuple[object, ...]
) -> None:
    gone, kept, unknown = words
    store.write_arrow(
        [(marked((1, "a", kept), (2, "b", unknown), (4, "d", kept)), WITH_DELETES)], 0, "q"
    )
    batch = marked(
        (1, None, gone), (2, None, gone), (2, "back", kept), (3, "c", kept), (3, "", gone)
    )
    store.write_arrow([(batch, WITH_DELETES)], 1, "q")
    assert database.rows("SELECT * FROM users ORDER BY id") == [(2, "back"), (4, "d")]


def test_weights_leave_the_row_that_was_added_last_whatever_the_order(
    store: Store, database: Database
) -> None:
    """What was taken away of a key and what was added come from tasks without an order."""
    table = TableSpec("users", ("id",), delete="_weight")

    def weighted(*rows: tuple[int, str, int]) -> pa.Table:
        return users(*(row[:2] for row in rows)).append_column(
            "_weight", [[row[2] for row in rows]]
        )

    store.write_arrow([(weighted((1, "a", 1), (2, "b", 1), (3, "c", 1)), table)], 0, "q")
    changes = weighted((1, "moved", 1), (1, "a", -1), (2, "b", -1), (3, "c", -1), (3, "d", 1))
    store.write_arrow([(changes, table)], 1, "q")
    assert database.rows("SELECT * FROM users ORDER BY id") == [(1, "moved"), (3, "d")]


def test_append_adds_every_row(store: Store, database: Database) -> None:
    table = TableSpec("log", mode="append")
    for batch_id in range(2):
        store.write_arrow([(users((1, "a"), (1, "a")), table)], batch_id, "q")
    assert database.rows("SELECT count(*) FROM log") == [(4,)]


def test_replace_puts_a_key_s_rows_in_place_of_all_it_had(store: Store, database: Database) -> None:
    table = TableSpec("top", ("id",), "replace", delete="gone")
    before = marked((1, "a", False), (1, "b", False), (2, "c", False), (3, "d", False))
    after = marked((1, "x", False), (1, "x", False), (2, None, True))
    store.write_arrow([(before, table)], 0, "q")
    store.write_arrow([(after, table)], 1, "q")
    assert database.rows("SELECT * FROM top ORDER BY id, name") == [(1, "x"), (1, "x"), (3, "d")]


def test_replace_deletes_what_the_same_batch_had_of_a_key_before(
    store: Store, database: Database
) -> None:
    table = TableSpec("top", ("id",), "replace", delete="gone")
    store.write_arrow([(marked((1, "old", False), (2, "old", False)), table)], 0, "q")
    batch = marked(
        (1, "a", False), (2, "b", False), (1, None, True), (2, None, True), (2, "back", False)
    )
    store.write_arrow([(batch, table)], 1, "q")
    assert database.rows("SELECT * FROM top") == [(2, "back")]


def test_string_that_is_not_utf8_is_named_with_a_cure(store: Store) -> None:
    wrong = pa.array([b"a\xff"]).view(pa.string())
    rows = pa.table({"id": pa.array([1]), "name": wrong})
    with pytest.raises(StoreError, match=r"not valid UTF-8.*make_valid_utf8"):
        store.write_arrow([(rows, USERS)], 0, "q")
    assert store.last_batch("q") is None


def test_empty_batch_moves_progress(store: Store, database: Database) -> None:
    store.write_arrow([(users((1, "a")).slice(1), USERS)], 7, "q", '{"t": {"0": 5}}')
    progress = store.progress("q")
    assert progress is not None
    assert (progress.batch_id, progress.offsets) == (7, '{"t": {"0": 5}}')
    assert database.rows("SELECT * FROM users") == []


def test_repeated_batch_is_not_written_again(database: Database) -> None:
    table = TableSpec("log", mode="append")
    for _ in range(3):  # runs that each find the last batch incomplete in their checkpoint
        with database.open() as store:
            store.write_arrow([(users((1, "a")), table)], 4, "q", '{"a":  1}', decision="d")
            assert store.last_batch("q") == 4
    assert database.rows("SELECT count(*) FROM log") == [(1,)]
    with database.open() as store:
        assert not store.write_arrow([(users((1, "a")), table)], 4, "q", '{"a": 1}')
        progress = store.progress("q")
    assert progress is not None
    assert (progress.decision, progress.epoch) == ("d", 4)


def test_queries_do_not_mind_each_other(store: Store, database: Database) -> None:
    for query in ("one", 'it\'s "two"; --'):
        assert store.last_batch(query) is None
        assert store.write_arrow([(users((len(query), query)), USERS)], 0, query)
        assert store.last_batch(query) == 0
    assert database.rows("SELECT count(*) FROM users") == [(2,)]


def test_older_run_is_fenced_once_a_newer_one_claims(database: Database) -> None:
    with database.open() as older, database.open() as newer:
        older.write_arrow([(users((1, "old")), USERS)], 0, "q")
        newer.claim("q")
        with pytest.raises(WriterFenced, match=r"'q'.*epoch 2.*holds 1.*stop this run"):
            older.write_arrow([(users((1, "late")), USERS)], 1, "q")
        assert newer.write_arrow([(users((1, "new")), USERS)], 1, "q")
    assert database.rows("SELECT * FROM users") == [(1, "new")]


def test_forgotten_query_writes_any_batch(store: Store, database: Database) -> None:
    store.write_arrow([(users((1, "a")), USERS)], 9, "q")
    with pytest.raises(StoreError, match=r"batch 9 .* batch 0.*checkpoint is behind.*forget\(\)"):
        store.write_arrow([(users((1, "b")), USERS)], 0, "q")
    store.forget("q")
    assert store.write_arrow([(users((1, "b")), USERS)], 0, "q")
    assert database.rows("SELECT name FROM users") == [("b",)]


def test_several_tables_are_one_decision(store: Store, database: Database) -> None:
    ages = TableSpec("ages", ("id",))
    good = pa.table({"id": [1], "age": [30]})
    bad = pa.table({"id": pa.array([2, None], pa.int64()), "age": [1, 2]})
    store.write_arrow([(users((1, "a")), USERS), (good, ages)], 0, "q")
    with pytest.raises(StoreError, match="1 of 2 rows have no value in key column 'id'"):
        store.write_arrow([(users((2, "b")), USERS), (bad, ages)], 1, "q")
    assert database.rows("SELECT id FROM users UNION ALL SELECT id FROM ages") == [(1,), (1,)]
    assert store.last_batch("q") == 0


def test_failure_in_the_second_table_undoes_the_first(store: Store, database: Database) -> None:
    database.run("CREATE TABLE ages (id bigint PRIMARY KEY, age bigint CHECK (age < 100))")
    outputs = [
        (users((1, "a")), USERS),
        (pa.table({"id": [1], "age": [200]}), TableSpec("ages", ("id",))),
    ]
    with pytest.raises(StoreError, match=r"(?i)check constraint"):
        store.write_arrow(outputs, 0, "q")
    assert database.rows("SELECT * FROM users") == []
    assert store.last_batch("q") is None


def test_two_outputs_into_one_table_are_refused(store: Store) -> None:
    with pytest.raises(ConfigError, match="same table"):
        store.write_arrow([(users((1, "a")), USERS), (users((1, "a")), USERS)], 0, "q")


def test_names_are_quoted(store: Store, database: Database) -> None:
    hostile = 'a"; DROP TABLE users; -- %s ?'
    store.write_arrow([(users((1, "a")), USERS)], 0, "other")
    spec = TableSpec(hostile, (hostile, "select"), delete="gone '\"")
    rows = pa.table(
        {hostile: [1, 2], "select": ["x", "y"], 'v %s"': [1, 2], "gone '\"": [False, True]}
    )
    for batch_id in range(2):
        store.write_arrow([(rows, spec)], batch_id, hostile)
    quoted = '"' + hostile.replace('"', '""') + '"'
    assert database.rows(f"SELECT * FROM {quoted}") == [(1, "x", 1)]
    assert database.rows("SELECT count(*) FROM users") == [(1,)]


def test_readers_see_whole_batches_only(database: Database) -> None:
    table = TableSpec("pairs", mode="append")
    ended = threading.Event()
    seen: set[int] = set()

    def read() -> None:
        while not ended.is_set() or not seen:
            seen.update(count for (count,) in database.rows("SELECT count(*) FROM pairs"))

    with database.open() as store:
        store.prepare(users((1, "")).schema, table)
        reader = threading.Thread(target=read)
        reader.start()
        batch = users(*((number, "n") for number in range(1000)))
        for batch_id in range(30):
            store.write_arrow([(batch, table)], batch_id, "q")
        ended.set()
        reader.join()
    assert all(count % 1000 == 0 for count in seen)


def test_all_simple_types_come_back(store: Store, database: Database) -> None:
    moment = datetime(1969, 7, 20, 20, 17, 40, 123456, tzinfo=UTC)
    columns = {
        "id": pa.array([1, 2], pa.int64()),
        "flag": pa.array([True, None]),
        "tiny": pa.array([-128, None], pa.int8()),
        "small": pa.array([32767, None], pa.int16()),
        "whole": pa.array([-(2**31), None], pa.int32()),
        "big": pa.array([2**63 - 1, None], pa.int64()),
        "single": pa.array([0.5, None], pa.float32()),
        "double": pa.array([0.1, None], pa.float64()),
        "money": pa.array([Decimal("-12345678901234567890.123456789"), None], pa.decimal128(38, 9)),
        "text": pa.array(["Grüße\t\\N\n\U0001f600", None]),
        "bytes": pa.array([b"\x00\xff", None], pa.binary()),
        "day": pa.array([date(1, 1, 1), None], pa.date32()),
        "at": pa.array([moment, None], pa.timestamp("us", "UTC")),
        "wall": pa.array([moment.replace(tzinfo=None), None], pa.timestamp("us")),
        "nested": pa.array([{"a": [1, 2], "b": None}, None]),
    }
    store.write_arrow([(pa.table(columns), TableSpec("things", ("id",)))], 0, "q")
    first, second = database.rows("SELECT * FROM things ORDER BY id")
    assert second == (2, *[None] * 14)
    assert first[1:8] == (True, -128, 32767, -(2**31), 2**63 - 1, 0.5, 0.1)
    assert Decimal(first[8]) == Decimal("-12345678901234567890.123456789")
    assert first[9:11] == ("Grüße\t\\N\n\U0001f600", b"\x00\xff")
    if database.is_sqlite:
        day, at = "0001-01-01", "1969-07-20 20:17:40.123456"
        assert first[11:] == (day, at, at, '{"a": [1, 2], "b": null}')
    else:
        assert first[11:] == (
            date(1, 1, 1),
            moment,
            moment.replace(tzinfo=None),
            {"a": [1, 2], "b": None},
        )


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "mysql://x", "shop.db"])
def test_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="sqlite:///relative"):
        open_store(url)


def test_table_that_was_dropped_is_refused_until_it_is_forgotten(database: Database) -> None:
    with database.open() as store:
        store.write_arrow([(users((1, "a")), USERS)], 0, "q")
    database.run("DROP TABLE users")
    with database.open() as store:
        with pytest.raises(StoreError, match=r"'users' was dropped and created again.*forget"):
            store.write_arrow([(users((2, "b")), USERS)], 1, "q")
        assert database.rows("SELECT * FROM users") == []
        store.forget("q")
        assert store.last_batch("q") is None
        store.write_arrow([(users((2, "b")), USERS)], 1, "q")
        store.write_arrow([(users((3, "c")), USERS)], 2, "q")
    with database.open() as store:
        store.write_arrow([(users((4, "d")), USERS)], 3, "q")
    assert database.rows("SELECT id FROM users ORDER BY id") == [(2,), (3,), (4,)]


def test_table_that_is_recreated_by_hand_is_refused(database: Database) -> None:
    with database.open() as store:
        store.write_arrow([(users((1, "a")), USERS)], 0, "q")
        database.run("DROP TABLE users")
        database.run("CREATE TABLE users (id bigint PRIMARY KEY, name text)")
        with pytest.raises(StoreError, match="'users' was dropped and created again"):
            store.write_arrow([(users((2, "b")), USERS)], 1, "q")  # in the run that has created it
    with (
        database.open() as store,
        pytest.raises(StoreError, match="'users' was dropped and created again"),
    ):
        store.write_arrow([(users((2, "b")), USERS)], 1, "q")
    assert database.rows("SELECT * FROM users") == []


def test_table_that_is_brought_back_by_its_name_continues(database: Database) -> None:
    with database.open() as store:
        store.write_arrow([(users((1, "a")), USERS)], 0, "q")
    database.run("ALTER TABLE users RENAME TO kept")
    with database.open() as store:
        with pytest.raises(StoreError, match=r"'users' was dropped.*rename it if it has another"):
            store.write_arrow([(users((2, "b")), USERS)], 1, "q")
        assert store.writers(USERS) == []
    database.run("DROP TABLE users")
    database.run("ALTER TABLE kept RENAME TO users")
    with database.open() as store:
        assert store.writers(USERS) == ["q"]
        store.write_arrow([(users((2, "b")), USERS)], 1, "q")
    assert database.rows("SELECT id FROM users ORDER BY id") == [(1,), (2,)]


def test_table_of_an_earlier_build_continues_and_gets_an_identity(database: Database) -> None:
    """Before, SQLite's was known by the name of the table, and PostgreSQL's was its number."""
    with database.open() as store:
        store.write_arrow([(users((1, "a")), USERS)], 0, "q")
    known = stored_identity(database)
    if database.is_sqlite:
        database.run(f'DROP INDEX "millstream identity {known}"')
        database.run(f"INSERT INTO millstream_tables VALUES ('users', '{known}')")
    else:
        database.run("COMMENT ON TABLE users IS NULL")
        number = known.partition("/")[0]
        database.run(f'UPDATE millstream_progress SET tables = \'{{"users": "{number}"}}\'')
    for batch_id in (1, 2):
        with database.open() as store:
            store.write_arrow([(users((batch_id + 1, "b")), USERS)], batch_id, "q")
    database.run("DROP TABLE users")
    database.run("CREATE TABLE users (id bigint PRIMARY KEY, name text)")
    with (
        database.open() as store,
        pytest.raises(StoreError, match="'users' was dropped and created again"),
    ):
        store.write_arrow([(users((4, "d")), USERS)], 3, "q")
    assert stored_identity(database).count("/") == (0 if database.is_sqlite else 2)


def stored_identity(database: Database) -> str:
    """That of the table `users` in the progress of its query."""
    ((tables,),) = database.rows("SELECT tables FROM millstream_progress")
    return str(json.loads(tables)["users"])


def test_store_that_never_saw_the_query_takes_a_batch_that_begins_at_offset_0(
    store: Store, database: Database
) -> None:
    begins = '{"orders": {"0": 0, "1": 0}}'
    assert store.write_arrow([(users((1, "a")), USERS)], 3, "q", begins=begins)
    assert database.rows("SELECT * FROM users") == [(1, "a")]


def test_store_that_never_saw_the_query_refuses_its_later_batches(
    store: Store, database: Database
) -> None:
    begins = '{"orders": {"0": 5}}'
    with pytest.raises(StoreError, match=r"nothing of query 'q'.*offset 5 of orders-0"):
        store.write_arrow([(users((1, "a")), USERS)], 3, "q", begins=begins)
    store.forget("q")
    assert store.write_arrow([(users((1, "a")), USERS)], 3, "q", begins=begins)
    assert database.rows("SELECT * FROM users") == [(1, "a")]


def test_store_without_identities_of_tables_continues(database: Database) -> None:
    """A store from before progress had the column `tables`."""
    database.run(
        "CREATE TABLE millstream_progress (query text PRIMARY KEY, epoch bigint NOT NULL, "
        "batch_id bigint, offsets text, decision text, checkpoint text, "
        f"written_at {'text' if database.is_sqlite else 'timestamptz'})"
    )
    database.run("INSERT INTO millstream_progress (query, epoch, batch_id) VALUES ('q', 1, 4)")
    with database.open() as store:
        assert store.last_batch("q") == 4
        assert not store.write_arrow([(users((1, "a")), USERS)], 4, "q")
        assert store.write_arrow([(users((2, "b")), USERS)], 5, "q")
    assert database.rows("SELECT id FROM users") == [(2,)]


def test_writers_of_a_table_are_known_until_it_is_dropped_or_they_are_forgotten(
    store: Store, database: Database
) -> None:
    table = TableSpec("users", key=("id",))
    store.prepare(users((1, "ada")).schema, table)
    assert store.writers(table) == []
    for query in ("two", "one"):
        store.write_arrow([(users((1, "ada")), table)], 0, query)
    store.write_arrow([(users((1, "ada")), TableSpec("others", key=("id",)))], 0, "three")
    assert store.writers(table) == ["one", "two"]
    store.forget("two")
    assert store.writers(table) == ["one"]
    database.run("DROP TABLE users")
    with database.open() as later:
        later.prepare(users((1, "ada")).schema, table)
        assert later.writers(table) == []
