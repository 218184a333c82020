"""Pipelines lose what they have of excised records: state, tables, views; and go on."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from psycopg import sql

from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.connect.tables.spec import TableSpec
from millstream.errors import ConfigError
from millstream.excision import pipelines
from millstream.excision.documents import Job
from millstream.excision.history import History
from millstream.excision.jobs import finish
from millstream.excision.pipelines import (
    IN_PLACE,
    VERSION,
    VIEWS,
    leftovers,
    load_pipeline,
    look,
    plan_pipeline,
    states,
    verify_pipeline,
)
from millstream.excision.selection import Access
from millstream.pipelines.stores import open_store
from tests.excision.conftest import NUMBERS
from tests.excision.test_crash import die_at
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.postgres import PostgresServer, serve_postgres

SECRET = "alice@example.org"
DECLARED = """
from pyspark.sql import functions as F
from millstream.pipelines import pipeline, table, topic, view, views

orders = topic("{topic}", schema="user string, email string, amount long")


@pipeline(reads=orders, writes=table("spent", key="email"))
def tables(orders):
    return orders.groupBy("email").agg(F.sum("amount").alias("total"))


@pipeline(reads=orders, writes={{"by_email": view(key="email")}})
def seen(orders):
    return {{"by_email": views.aggregate(orders, key="email", total="sum(amount)")}}


@pipeline(reads=orders, writes=topic("{topic}-out", key="user"))
def passed_on(orders):
    return orders


@pipeline(reads=topic("other", schema="a long"), writes=table("other", key="a"))
def unconcerned(rows):
    return rows
"""


class Shop:
    """A topic of orders, keyed by user, and pipelines of it."""

    def __init__(self, cluster: Cluster, access: Access, directory: Path) -> None:
        self.cluster, self.access, self.directory = cluster, access, directory
        self.topic = f"orders-{next(NUMBERS)}"
        create_topics(cluster, [NewTopic(self.topic, 2), NewTopic(f"{self.topic}-out", 1)])
        self.file = directory / "shop.py"
        self.file.write_text(DECLARED.format(topic=self.topic))
        (directory / "millstream.toml").write_text(
            f'broker = "{access.bootstrap_servers}"\nmaster = "local[2]"\n'
        )
        self._producer = Producer({"bootstrap.servers": access.bootstrap_servers})

    def put(self, **amounts: int) -> None:
        for user, amount in amounts.items():
            value = {"user": user, "email": f"{user}@example.org", "amount": amount}
            self._producer.produce(self.topic, json.dumps(value), user)
        assert self._producer.flush(PATIENCE_SECONDS) == 0

    def command(self, *arguments: str, code: int = 0) -> str:
        ended = subprocess.run(
            [sys.executable, "-m", "millstream.cli.entry", *arguments],
            cwd=self.directory,
            env={**os.environ, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=5 * PATIENCE_SECONDS,
            check=False,
        )
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    def excise(self, *options: str, code: int = 0) -> str:
        there = ("-b", self.access.bootstrap_servers)
        return self.command("excise", *options, *there, code=code)

    def job(self) -> Job:
        jobs = History(self.cluster).jobs().values()
        (job,) = [it for it in jobs if it.topics[0].topic == self.topic]
        return job

    def totals(self, table: str = "spent") -> dict[str, int]:
        with closing(sqlite3.connect(self.directory / ".millstream" / "store.db")) as connection:
            found = connection.execute(f"SELECT email, total FROM {table}").fetchall()
        return {email.partition("@")[0]: int(total) for email, total in found}

    def view_table(self) -> str:
        """Of the only generation that is left; a start that is repeated gives it another number."""
        with closing(sqlite3.connect(self.directory / ".millstream" / "store.db")) as connection:
            ((name,),) = connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'by_email%' "
                "AND name NOT LIKE '%history'"
            ).fetchall()
        return str(name)

    def files_with(self, text: str) -> list[str]:
        files = [it for it in self.directory.rglob("*") if it.is_file()]
        return [it.name for it in files if text.encode() in it.read_bytes()]


@pytest.fixture
def shop(cluster: Cluster, access: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.chdir(tmp_path)
    return Shop(cluster, access, tmp_path)


def plan(shop: Shop, name: str) -> tuple[Any, list[str]]:
    declared = f"{shop.file}:{name}"
    return plan_pipeline(shop.cluster, declared, shop.access.bootstrap_servers, [shop.topic])


def test_how_a_pipeline_is_excised_depends_on_what_it_writes(shop: Shop) -> None:
    found = {name: plan(shop, name) for name in ("tables", "seen", "passed_on")}
    assert {name: it.how for name, (it, _) in found.items()} == {
        "tables": IN_PLACE,
        "seen": VIEWS,
        "passed_on": VERSION,
    }
    assert {name: it.tables for name, (it, _) in found.items()} == {
        "tables": ("spent",),
        "seen": ("by_email",),
        "passed_on": (),
    }
    assert found["passed_on"][1] == [f"{shop.topic}-out"]


def test_pipelines_that_cannot_be_excised_are_refused(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="unconcerned reads none of"):
        plan(shop, "unconcerned")
    with pytest.raises(ConfigError, match="has several pipelines"):
        plan_pipeline(shop.cluster, str(shop.file), shop.access.bootstrap_servers, [shop.topic])
    with monkeypatch.context() as set_to:
        set_to.setenv("MILLSTREAM_STORE", "redis://somewhere/0")
        with pytest.raises(ConfigError, match="its store is redis://"):
            plan(shop, "tables")
    with monkeypatch.context() as set_to:
        set_to.setenv("MILLSTREAM_CHECKPOINT", "s3a://bucket/checkpoints")
        with pytest.raises(ConfigError, match="is not on a local disk"):
            plan(shop, "tables")


def test_state_is_known_by_the_ids_of_checkpoints(shop: Shop) -> None:
    """Of all versions and generations, and of half-deleted ones; and of the tables they wrote."""
    pipeline, settings = load_pipeline(f"{shop.file}:tables", shop.access.bootstrap_servers)
    root = shop.directory / ".millstream" / "checkpoints"
    names = {"tables": "a", "tables@2": "b", "tables+3": "c", ".tables.removed": "d", "other": "e"}
    for name, state in names.items():
        (root / name).mkdir(parents=True)
        (root / name / "metadata").write_text(json.dumps({"id": state}))
    (root / "tables@4").mkdir()
    assert sorted(states(pipeline, settings)) == ["a", "b", "c", "d"]
    assert leftovers(pipeline, settings, ["x"]) == []
    assert leftovers(pipeline, settings, ["b"]) == [str(root / "tables@2")]
    with open_store(settings.store_url) as store:
        rows = pa.table({"email": ["a"], "total": [1]})
        store.write_arrow([(rows, TableSpec("spent", ("email",)))], 0, "tables")
    with closing(sqlite3.connect(settings.store_url.removeprefix("sqlite:///"))) as connection:
        connection.execute("UPDATE millstream_progress SET checkpoint = 'f'")
        connection.commit()
    assert leftovers(pipeline, settings, ["f"]) == ["spent"]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def store_url(request: pytest.FixtureRequest, shop: Shop) -> str:
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.new_database()
        with (shop.directory / "millstream.toml").open("a") as file:
            file.write(f'store = "{url}"\n')
        return url
    return load_pipeline(f"{shop.file}:tables", shop.access.bootstrap_servers)[1].store_url


def test_tables_and_progress_are_of_one_moment_and_writers_go_on(
    shop: Shop, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when a batch is written between the two; and `verify` compares tables alone."""
    servers = shop.access.bootstrap_servers
    found, _ = plan(shop, "tables")
    job = Job("j", 1, "bob", "", "key", "digest", "salt", ())
    rows = (pa.table({"email": [it], "total": [1]}) for it in "abcd")

    def write(store: Any, batch: int) -> None:
        store.write_arrow([(next(rows), TableSpec("spent", ("email",)))], batch, "tables")

    real = pipelines._progress

    def between(*given: Any) -> Any:
        with open_store(store_url) as other:
            write(other, 1)
        return real(*given)

    with open_store(store_url) as store:
        write(store, 0)
    with monkeypatch.context() as patched:
        patched.setattr(pipelines, "_progress", between)
        seen = look(found, job, servers)
    assert seen.tables["spent"]["rows"] == 1
    assert [batch for _, batch in seen.progress.values()] == [0]
    report = look(found, job, servers).fields("after") | {"states": []}
    assert report["rows_after"] == {"spent": 2}
    monkeypatch.setattr(pipelines, "digest_directory", lambda path: pytest.fail("not needed"))
    assert verify_pipeline(found, report, job, servers, compare_hashes=True) == []
    with open_store(store_url) as store:
        write(store, 2)
    assert verify_pipeline(found, report, job, servers, compare_hashes=True) == []
    report["progress"]["tables"][1] = 2  # as if that was no batch of the pipeline
    (problem,) = verify_pipeline(found, report, job, servers, compare_hashes=True)
    assert "something else wrote to it" in problem


def test_tables_of_views_keep_their_schema() -> None:
    assert pipelines._declared('main."by_email+2"') == "by_email+2"
    assert pipelines._declared('"sales"."by ""email"""') == 'sales.by "email"'


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_tables_are_computed_again_without_the_records(shop: Shop) -> None:
    shop.put(alice=5, bob=7)
    shop.command("run", "shop.py:tables", "--once")
    assert shop.totals() == {"alice": 5, "bob": 7}
    assert shop.files_with(SECRET)
    request = ("--topic", shop.topic, "--key", "alice", "--pipeline", "shop.py:tables")
    assert "emptied and computed again" in shop.excise(*request, "--dry-run")
    assert shop.totals() == {"alice": 5, "bob": 7}
    said = shop.excise(*request, "--yes", "--receipt", "receipt.json")
    assert "spent had 2 rows and has 1" in said
    assert shop.totals() == {"bob": 7}
    assert shop.files_with(SECRET) == []
    (report,) = json.loads((shop.directory / "receipt.json").read_text())["derived"]
    assert report["hashes_before"]["spent"] != report["hashes_after"]["spent"]
    ((before,), (after,)) = (report[f"state_hashes_{it}"].items() for it in ("before", "after"))
    assert before[0] != after[0]
    assert min(before[1]["files"], after[1]["files"]) > 3
    assert "intact" in shop.excise("verify", "receipt.json", "--key", "alice")
    with closing(sqlite3.connect(shop.directory / ".millstream" / "store.db")) as connection:
        connection.execute("UPDATE spent SET total = 12")  # as if alice's were still in it
        connection.commit()
    assert "something else wrote to it" in shop.excise("verify", "receipt.json", code=1)
    with closing(sqlite3.connect(shop.directory / ".millstream" / "store.db")) as connection:
        connection.execute("UPDATE spent SET total = 7")
        connection.commit()
    shop.put(bob=1, carol=2)
    shop.command("run", "shop.py:tables", "--once")
    assert shop.totals() == {"bob": 8, "carol": 2}


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_views_are_built_beside_the_old_ones(shop: Shop) -> None:
    shop.put(alice=5, bob=7)
    shop.command("run", "shop.py:seen", "--once")
    request = ("--topic", shop.topic, "--key", "alice", "--pipeline", "shop.py:seen")
    said = shop.excise(*request, "--yes", "--receipt", "receipt.json")
    assert "by_email had 2 rows and has 1" in said
    assert shop.totals(shop.view_table()) == {"bob": 7}
    assert shop.files_with(SECRET) == []
    assert "intact" in shop.excise("verify", "receipt.json", "--key", "alice")
    shop.put(bob=1)
    shop.command("run", "shop.py:seen", "--once")
    assert shop.totals(shop.view_table()) == {"bob": 8}


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    yield from serve_postgres("fsync=off")


def relation_files(url: str, server: PostgresServer) -> list[Path]:
    """Those of all tables and indexes of a database, on the disk."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        found = connection.execute(
            "SELECT pg_relation_filepath(oid) FROM pg_class WHERE relkind IN ('r', 'i', 't') "
            "AND relnamespace IN ('public'::regnamespace, 'pg_toast'::regnamespace)"
        ).fetchall()
    return [path for (name,) in found if name and (path := server.data / name).is_file()]


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", ["tables", "seen"])
def test_store_in_postgresql_loses_the_records_too(
    shop: Shop, postgres: PostgresServer, name: str
) -> None:
    url = postgres.new_database()
    with (shop.directory / "millstream.toml").open("a") as file:
        file.write(f'store = "{url}"\n')
    table = "spent" if name == "tables" else "by_email"

    def totals() -> dict[str, int]:
        with psycopg.connect(url) as connection:
            ((physical,),) = connection.execute(  # a view has a table of its generation
                "SELECT tablename FROM pg_tables WHERE starts_with(tablename, %s) "
                "AND tablename NOT LIKE '%%history'",
                (table,),
            ).fetchall()
            query = sql.SQL("SELECT email, total FROM {}").format(sql.Identifier(physical))
            found = connection.execute(query).fetchall()
        return {email.partition("@")[0]: int(total) for email, total in found}

    def files_with_alice() -> list[Path]:
        files = [*relation_files(url, postgres), *shop.directory.rglob("*")]
        return [it for it in files if it.is_file() and SECRET.encode() in it.read_bytes()]

    shop.put(alice=5, bob=7)
    shop.command("run", f"shop.py:{name}", "--once")
    assert files_with_alice()
    request = ("--topic", shop.topic, "--key", "alice", "--pipeline", f"shop.py:{name}")
    said = shop.excise(*request, "--yes", "--receipt", "receipt.json")
    assert f"{table} had 2 rows and has 1" in said
    assert totals() == {"bob": 7}
    assert files_with_alice() == []
    (report,) = json.loads((shop.directory / "receipt.json").read_text())["derived"]
    assert report["hashes_before"][table] != report["hashes_after"][table]
    assert not report["state_hashes_before"].keys() & report["state_hashes_after"].keys()
    assert "intact" in shop.excise("verify", "receipt.json", "--key", "alice")
    shop.put(bob=1, carol=2)
    shop.command("run", f"shop.py:{name}", "--once")
    assert totals() == {"bob": 8, "carol": 2}
    assert "intact" in shop.excise("verify", "receipt.json")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_pipeline_that_writes_topics_is_replaced_by_another_version(shop: Shop) -> None:
    shop.put(alice=5, bob=7)
    shop.command("deploy", "shop.py:passed_on", "--once")
    request = ("--topic", shop.topic, "--key", "alice", "--pipeline", "shop.py:passed_on")
    said = shop.excise(*request, "--yes", code=1)
    assert "put another version in its place" in said
    job = shop.job().id
    assert "millstream deploy" in shop.excise("resume", job, code=1)
    shop.command("deploy", "shop.py:passed_on", "--version", "2", "--once")
    shop.command("switch", "passed_on", "2")
    shop.command("versions", "remove", "passed_on", "1", "--yes")
    assert "removed 2 records" in shop.excise("resume", job)  # with that of the output
    assert shop.files_with(SECRET) == []


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "point",
    ["after _empty", "before delete_checkpoint", "after delete_checkpoint", "after run"],
)
def test_client_killed_while_it_excises_a_pipeline(shop: Shop, point: str) -> None:
    shop.put(alice=5, bob=7)
    shop.command("run", "shop.py:tables", "--once")
    # Two calls each of put_job, append_to_setting (twice), put_derived; then the pipeline's own.
    own = ["before _empty", "after _empty", "before delete_checkpoint", "after delete_checkpoint",
           "before run", "after run"]  # fmt: skip
    step = 8 + own.index(point) + 1
    scene: Any = shop
    assert die_at(step, scene, "--pipeline", "shop.py:tables")[-1] == point
    job = shop.job()
    assert "spent had 2 rows and has 1" in shop.excise("resume", job.id)
    assert shop.totals() == {"bob": 7}
    assert shop.files_with(SECRET) == []
    again = finish(shop.cluster, job, timeout_seconds=PATIENCE_SECONDS)
    assert [it for it in History(shop.cluster).receipts() if it.job.id == job.id] == [again]
