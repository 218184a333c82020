"""Generations of views: built beside those that readers read, and shown when they caught up."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millstream.errors import StoreError, Superseded
from millstream.pipelines.stores import Store, sqlite
from millstream.views import Views, open_views
from millstream.views.generations import (
    Generations,
    generation_name,
    generation_table,
    has_reached,
    is_listed_for_readers,
    number_of,
)
from millstream.views.spec import Stamp
from tests.pipelines.stores.conftest import Database
from tests.views.conftest import Shop

RECORDS = 3  # that the first generation has read
READER_PAUSE_SECONDS = 0.002  # so that the builder gets some of the CPU
PARTS = 4  # of the slow test, so that each ends in time


def test_names_of_generations() -> None:
    assert [generation_name("shop@2", it) for it in (1, 2)] == ["shop@2", "shop@2+2"]
    assert [generation_table("by_user", it) for it in (1, 12)] == ["by_user", "by_user__12"]
    assert [number_of(it, "shop") for it in ("shop", "shop+12")] == [1, 12]
    assert [number_of(it, "shop") for it in ("shop@2+2", "shop+0", "shopper", "x+2")] == [None] * 4
    assert [is_listed_for_readers(it) for it in ("shop", "shop+2", "shop retired")] == [
        True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("found", "names", "number"),
    [
        (Generations(None, {}, 0), "a", 1),
        (Generations(1, {1: frozenset("a")}, 1), "a", 1),
        (Generations(1, {1: frozenset("a")}, 1), "ab", 2),
        (Generations(1, {1: frozenset("a"), 2: frozenset("ab")}, 2), "ab", 2),  # it goes on
        (Generations(1, {1: frozenset("a"), 2: frozenset("ab")}, 2), "ac", 3),
        (Generations(2, {2: frozenset("ab")}, 5), "a", 6),  # numbers are given once
    ],
)
def test_generation_is_chosen_by_its_views(found: Generations, names: str, number: int) -> None:
    assert found.choose(names) == number


def test_stamp_has_reached_another_in_all_partitions_of_the_same_topics() -> None:
    def stamp(ids: str = "x", **ends: int) -> Stamp:
        return Stamp({("t", int(it[1:])): end for it, end in ends.items()}, {"t": ids})

    assert has_reached(stamp(p0=3, p1=2), stamp(p0=3))
    assert not has_reached(stamp(p0=9), stamp(p0=3, p1=1))
    assert has_reached(stamp("new", p0=1), stamp("old", p0=100))


@pytest.fixture
def newer(shop: Shop, database: Database) -> Iterator[Shop]:
    """The second generation of the shop, which has not begun; the first has read three records."""
    shop.spend(RECORDS, ada=1)
    with database.open() as store:
        yield Shop(store, shop.url, "shop+2", public="shop")


def test_new_generation_appears_with_the_batch_that_has_caught_up(
    shop: Shop, newer: Shop, views: Views
) -> None:
    newer.prepare()
    newer.spend(RECORDS - 1, bob=1)
    with views.read() as v:
        assert [row["user"] for row in v["by_user"].range()] == ["ada"]
    newer.spend(bob=1)
    with views.read() as v:
        assert v.stamp.offsets["orders", 0] == RECORDS
        assert v.stamp.numbers == {"shop": 2}
        assert v["by_user"].range() == [{"user": "bob", "spent": 2}]
        assert v["by_user"].changes(2) == [
            ({"user": "bob", "spent": 1}, {"user": "bob", "spent": 2})
        ]
    newer.spend(bob=1)
    with views.read(at_least=("orders", 0, RECORDS)) as v:
        assert v["by_user"].get("bob") == {"user": "bob", "spent": 3}


def test_earlier_generation_is_refused_once_another_has_its_place(
    shop: Shop, newer: Shop, views: Views
) -> None:
    newer.prepare()
    newer.spend(RECORDS, bob=1)
    with pytest.raises(Superseded, match=r"written by shop\+2 now"):
        shop.spend(ada=1)
    with views.read() as v:
        assert v["by_user"].range() == [{"user": "bob", "spent": 1}]


def test_generation_does_not_appear_while_the_other_one_is_ahead(
    shop: Shop, newer: Shop, views: Views
) -> None:
    newer.prepare()
    for _ in range(3):
        shop.spend(2, ada=1)
        newer.spend(2, bob=1)
    with views.read() as v:
        assert v["by_user"].get("bob") is None
        assert v.stamp.offsets["orders", 0] == RECORDS + 6


def test_restarted_generation_stays_hidden_and_goes_on(
    newer: Shop, views: Views, database: Database
) -> None:
    newer.prepare()
    newer.spend(bob=1)
    with database.open() as store:
        again = Shop(store, newer.url, "shop+2", "shop", batch_id=0, offset=1).prepare()
        again.spent = {"bob": 1}
        with views.read() as v:
            assert v["by_user"].get("bob") is None
        again.spend(RECORDS - 1, bob=1)
        with views.read() as v:
            assert v["by_user"].range() == [{"user": "bob", "spent": 2}]
        again.prepare()  # a restart of the one that readers read
        assert store.generations("shop").serving == 2


def test_replaced_tables_are_dropped(newer: Shop, views: Views, database: Database) -> None:
    newer.prepare()
    newer.spend(RECORDS, bob=1)
    newer.store.retire("shop")
    for table in ("shop_by_user", "shop_by_user__history"):
        with pytest.raises(Exception, match=r"no such table|does not exist"):
            database.rows(f"SELECT * FROM {table}")
    assert database.rows("SELECT DISTINCT query FROM millstream_stamps") == [("shop+2",)]
    assert newer.store.generations("shop") == Generations(
        2, {2: frozenset({"by_user", "total"})}, 2
    )
    with views.read() as v:
        assert v["by_user"].count() == 1


def test_generation_that_is_given_up_is_dropped_and_refused(
    shop: Shop, newer: Shop, views: Views, database: Database
) -> None:
    newer.prepare()
    newer.spend(bob=1)
    with database.open() as store:
        store.retire("shop", ["shop+2"])
        assert store.generations("shop").choose(["other"]) == 3  # its number is not given again
    with pytest.raises(Superseded):
        newer.spend(RECORDS, bob=1)
    shop.spend(ada=1)
    with views.read() as v:
        assert v["by_user"].get("ada") == {"user": "ada", "spent": 2}


def test_readers_keep_the_tables_of_their_snapshot(newer: Shop, views: Views) -> None:
    """In PostgreSQL, what readers use is not dropped; in SQLite, they have a copy."""
    newer.prepare()
    with views.read() as v:
        newer.spend(RECORDS, bob=1)
        newer.store.retire("shop")
        assert v["by_user"].get("ada") == {"user": "ada", "spent": 1}
        assert v["total"].count() == 1
    newer.store.retire("shop")
    with views.read() as v:
        assert v["by_user"].get("ada") is None


def test_table_that_is_dropped_behind_the_listing_is_an_error(
    newer: Shop, postgres_database: Database
) -> None:
    with postgres_database.open() as store:
        Shop(store, postgres_database.url).prepare().spend(ada=1)
        postgres_database.run("DROP TABLE shop_total CASCADE")
        with (
            pytest.raises(StoreError, match="shop_total"),
            open_views(postgres_database.url, "shop") as views,
            views.read(),
        ):
            pass


# Killed at every statement


class KillingConnection:
    """Calls `step` before every statement: after one, nothing happens until the next."""

    def __init__(self, connection: Any, step: Callable[[], None]) -> None:
        self._connection = connection
        self._step = step

    def execute(self, *arguments: Any, **named: Any) -> Any:
        self._step()
        return self._connection.execute(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def build(store: Store, url: str, steps: Callable[[], None]) -> None:
    """What a run does with the second generation, from wherever it is: list it, write what is
    missing, and drop what is replaced."""
    progress = store.progress("shop+2")
    done = -1 if progress is None or progress.batch_id is None else progress.batch_id
    shop = Shop(store, url, "shop+2", "shop", batch_id=done, offset=max(done + 1, 0))
    shop.spent = {"bob": done + 1} if done >= 0 else {}
    shop.prepare()
    while shop.offset < RECORDS + 1:
        shop.spend(bob=1)
    store.retire("shop")
    steps()


def fork(action: Callable[[], object]) -> int:
    """The id of a process that runs the action, and exits with 0 unless it fails."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            action()
            status = 0
        finally:
            if status:
                sys.excepthook(*sys.exc_info())
            os._exit(status)
    return child


def was_killed(child: int) -> bool:
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        assert os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)


def build_until(url: str, at: int) -> None:
    """The build, which kills its process at that step."""
    count = itertools.count(1)

    def step() -> None:
        if next(count) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    _watch_statements(step)
    with Database(url).open() as store:
        build(store, url, step)


def _watch_statements(step: Callable[[], None]) -> None:
    opened = sqlite.open_database
    sqlite.open_database = lambda path: KillingConnection(opened(path), step)  # type: ignore

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def watched_call(*arguments: Any, **named: Any) -> Any:
            step()
            return call(*arguments, **named)

        return watched_call

    psycopg.Connection.execute = watched(psycopg.Connection.execute)  # type: ignore
    psycopg.Transaction.__exit__ = watched(psycopg.Transaction.__exit__)  # type: ignore


def read_until(url: str, end: Path) -> None:
    """Read until the file is there, and fail if a read has parts of both generations, or is behind
    an earlier one."""
    last, reads = 0, 0
    with open_views(url, "shop") as views:
        while not end.exists() or not reads:
            with views.read() as v:
                offset = v.stamp.offsets["orders", 0]
                (row,), (total,) = v["by_user"].range(), v["total"].range()
                assert row["spent"] == total["spent"]
                assert row["user"] == "bob" or (row["user"], offset) == ("ada", RECORDS)
                assert offset >= max(last, RECORDS)
                last, reads = offset, reads + 1
            time.sleep(READER_PAUSE_SECONDS)


def copy_of(database: Database, number: int) -> Database:
    if database.is_sqlite:
        path = Path(database.url.removeprefix("sqlite:///"))
        return Database(f"sqlite:///{shutil.copy(path, path.with_name(f'copy{number}.db'))}")
    server, _, name = database.url.rpartition("/")
    Database(f"{server}/postgres").run(f"CREATE DATABASE {name}_{number} TEMPLATE {name}")
    return Database(f"{database.url}_{number}")


def drop(database: Database) -> None:
    if database.is_sqlite:
        for path in Path(database.url.removeprefix("sqlite:///")).parent.glob("copy*"):
            path.unlink()
        return
    server, _, name = database.url.rpartition("/")
    Database(f"{server}/postgres").run(f"DROP DATABASE {name} WITH (FORCE)")


def kill_everywhere(database: Database, end: Path, first: int, every: int) -> int:
    """Kill a build at each step in turn, while a process reads, and run it again; returns how often
    it was killed."""
    with database.open() as store:
        Shop(store, database.url).prepare().spend(RECORDS, ada=1)
    for kills in itertools.count():
        copy = copy_of(database, kills)
        end.unlink(missing_ok=True)
        reader = fork(partial(read_until, copy.url, end))
        killed = was_killed(fork(partial(build_until, copy.url, first + kills * every)))
        assert not was_killed(fork(partial(build_until, copy.url, 0)))
        end.touch()
        assert not was_killed(reader)
        with open_views(copy.url, "shop") as views, views.read() as v:
            assert v["by_user"].range() == [{"user": "bob", "spent": RECORDS + 1}]
        assert [it for (it,) in copy.rows("SELECT DISTINCT query FROM millstream_views")] == [
            "shop"
        ]
        drop(copy)
        if not killed:
            return kills
    raise AssertionError


@pytest.mark.slow_with("postgres")
def test_build_killed_before_some_statements(database: Database, tmp_path: Path) -> None:
    every = 31
    assert kill_everywhere(database, tmp_path / "end", 1, every) > 2


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
def test_build_killed_before_every_statement(database: Database, tmp_path: Path, part: int) -> None:
    assert kill_everywhere(database, tmp_path / "end", 1 + part, PARTS) > 20
