"""Tables that cannot be captured: refused at the first start, left out later, with the cure."""

from __future__ import annotations

import logging

import pytest

from millstream.connect.capture.control import read_status
from millstream.connect.capture.position import TableState
from millstream.connect.capture.selection import Publication, SourceTable, select
from millstream.connect.capture.settings import CaptureSettings
from tests.connect.capture.harness import TABLE, Setup, read_topic, wait_until

PUBLICATION = Publication(1, frozenset(), True, True, frozenset())


def settings(**changes: object) -> CaptureSettings:
    given = {"name": "shop", "database": "", "tables": ["x.*", "y.*"]}
    return CaptureSettings(**given | changes)  # type: ignore[arg-type]


def table(schema: str, name: str, **changes: bool) -> SourceTable:
    found = SourceTable(1, schema, name, "r", "d", 0, True, True, False, True, "me")
    return found._replace(**changes)  # type: ignore[arg-type]


def reader_of(setup: Setup) -> str:
    """A role as the guide creates it, and the URL with it."""
    role = f"reader_{setup.name}"
    setup.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    setup.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    setup.execute(
        f"CREATE PUBLICATION {setup.slot} FOR ALL TABLES WITH (publish_via_partition_root = true)"
    )
    return setup.url.replace("millstream@", f"{role}@")


@pytest.mark.parametrize("topic", ["{name}.{table}", "all-{table}"])
def test_topic_of_two_tables_stays_with_the_first_one(topic: str) -> None:
    chosen = settings(topic=topic)
    catalogue = [table("x", "a"), table("y", "a"), table("y", "b")]
    found = select(chosen, catalogue, PUBLICATION, {})
    assert list(found.tables) == ["x.a", "y.b"]
    assert (
        f"{topic[:-7].replace('{name}', 'shop')}a, but this is the topic of x.a"
        in (found.left_out["y.a"])
    )
    known = {"y.a": TableState(1)}
    assert list(select(chosen, catalogue, PUBLICATION, known).left_out) == ["x.a"]


def test_topics_of_the_capture_itself_are_no_tables() -> None:
    chosen = settings(topic="{name}.{table}", transactions=True)
    names = ["capture", "transaction", "message", "heartbeat"]
    found = select(chosen, [table("x", it) for it in names], PUBLICATION, {})
    assert list(found.left_out) == ["x.capture", "x.transaction", "x.message"]
    assert (
        "its topic is shop.capture, but the capture itself writes it"
        in (found.left_out["x.capture"])
    )


def test_role_that_may_not_publish_leaves_out_a_table() -> None:
    catalogue = [table("x", "Mine", may_publish=False)]
    left_out = select(settings(), catalogue, PUBLICATION, {}).left_out
    assert 'ALTER PUBLICATION millstream_shop ADD TABLE x."Mine"' in left_out["x.Mine"]
    assert not select(settings(), catalogue, None, {}).left_out


def test_copied_table_need_not_be_readable() -> None:
    catalogue = [table("x", "a", may_read=False), table("x", "b", hides_rows=True)]
    published = PUBLICATION._replace(tables=frozenset({"x.a", "x.b"}))
    left_out = select(settings(), catalogue, published, {}).left_out
    assert "GRANT SELECT ON x.a TO me" in left_out["x.a"]
    assert "ALTER ROLE me BYPASSRLS" in left_out["x.b"]
    done = {name: TableState(1, "done") for name in ("x.a", "x.b")}
    assert not select(settings(), catalogue, published, done).left_out
    recreated = {name: TableState(2, "done") for name in ("x.a", "x.b")}
    assert len(select(settings(), catalogue, published, recreated).left_out) == 2
    assert not select(settings(snapshot="never"), catalogue, published, {}).left_out


def test_first_start_names_both_tables_of_a_topic(setup: Setup) -> None:
    for schema in ("x", "y"):
        setup.execute(f"CREATE SCHEMA {schema}")
        setup.execute(TABLE.format(f"{schema}.a"))
    message = setup.failure(tables=["x.*", "y.*"], topic="{name}.{table}")
    assert f"cannot capture y.a: its topic is {setup.name}.a, but this is the topic of x.a" in (
        message
    )


def test_table_with_the_topic_of_the_positions_is_refused(setup: Setup) -> None:
    setup.execute(TABLE.format("capture"))
    message = setup.failure(topic="{name}.{table}")
    assert "cannot capture public.capture: its topic is" in message


def test_pattern_that_matches_no_table_is_named(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    setup.execute(TABLE.format("customers"))
    tables = ["public.customers", "public.custmers", "sales.*"]
    with caplog.at_level(logging.WARNING), setup.running(tables=tables) as capture:
        setup.caught_up(capture)
    misspelt = "public.custmers: no such table; did you mean public.customers?"
    assert misspelt in caplog.messages
    problems = read_status(CaptureSettings(**setup.settings | {"tables": tables})).table_problems
    assert list(problems) == ["public.custmers", "sales.*"]


def test_partition_that_is_named_is_refused_with_its_table(setup: Setup) -> None:
    setup.execute("CREATE TABLE a (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    setup.execute("CREATE TABLE a1 PARTITION OF a FOR VALUES FROM (0) TO (10)")
    message = setup.failure(tables=["public.a1"])
    assert "public.a1: it is a partition of public.a: name that table instead" in message


def test_new_table_without_a_key_is_left_out_until_it_has_one(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    setup.execute(TABLE.format("orders"))
    with setup.running(heartbeat_seconds=0.1) as capture:
        setup.caught_up(capture)
        setup.execute("CREATE TABLE scratch (id int, version int)")
        wait_until(lambda: "public.scratch" in capture.progress.table_problems, capture=capture)
        setup.execute("INSERT INTO scratch VALUES (1, 0)")
        setup.execute("UPDATE scratch SET version = 1")  # it is not published
        setup.execute("INSERT INTO orders VALUES (1, 0)")
        setup.caught_up(capture)
        problems = read_status(CaptureSettings(**setup.settings)).table_problems
        assert "left out: it has no replica identity" in problems["public.scratch"]
        assert not setup.read("scratch")
        setup.execute("ALTER TABLE scratch ADD PRIMARY KEY (id)")
        wait_until(lambda: "public.scratch" in capture.progress.state.tables, capture=capture)  # type: ignore[union-attr]
        setup.caught_up(capture)
        wait_until(lambda: not capture.progress.table_problems, capture=capture)
    setup.check("orders", "scratch")
    warnings = [it for it in caplog.messages if it.startswith("public.scratch: left out")]
    assert len(warnings) == 1
    assert "ALTER TABLE public.scratch REPLICA IDENTITY FULL" in warnings[0]


def test_new_table_that_may_not_be_read_is_left_out_until_it_may(setup: Setup) -> None:
    """All tables are published; its changes are not written before its copy."""
    setup.execute(TABLE.format("orders"))
    url = reader_of(setup)
    changes = {"database": url, "manage_publication": False, "heartbeat_seconds": 0.1}
    with setup.running(**changes) as capture:
        setup.caught_up(capture)
        setup.execute(TABLE.format("items"))
        setup.execute("INSERT INTO items VALUES (1, 0)")
        setup.execute("INSERT INTO orders VALUES (1, 0)")
        setup.caught_up(capture)
        wait_until(lambda: "public.items" in capture.progress.table_problems, capture=capture)
        assert "may not read it" in capture.progress.table_problems["public.items"]
        assert not setup.read("items")
        setup.execute(f"GRANT SELECT ON items TO reader_{setup.name}")
        setup.execute("UPDATE items SET version = 1")
        wait_until(lambda: "public.items" in capture.progress.state.tables, capture=capture)  # type: ignore[union-attr]
        setup.caught_up(capture)
    setup.check("orders", "items")


def test_deferrable_key_is_no_replica_identity(setup: Setup) -> None:
    """Once such a table is published, PostgreSQL refuses its updates."""
    setup.execute(TABLE.format("orders"))
    with setup.running(heartbeat_seconds=0.1) as capture:
        setup.caught_up(capture)
        setup.execute("CREATE TABLE ranks (id int PRIMARY KEY DEFERRABLE, version int)")
        wait_until(lambda: "public.ranks" in capture.progress.table_problems, capture=capture)
        assert "no replica identity" in capture.progress.table_problems["public.ranks"]
        setup.execute("INSERT INTO ranks VALUES (1, 0)")
        setup.execute("UPDATE ranks SET version = 1")
        setup.execute("ALTER TABLE ranks REPLICA IDENTITY FULL")
        wait_until(lambda: "public.ranks" in capture.progress.state.tables, capture=capture)  # type: ignore[union-attr]
        setup.execute("UPDATE ranks SET version = 2")
        setup.caught_up(capture)
    setup.check("ranks")


def test_only_table_is_dropped_and_created_again(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    setup.execute("INSERT INTO orders VALUES (1, 0)")
    with setup.running(tables=["public.orders"], heartbeat_seconds=0.1) as capture:
        setup.caught_up(capture)
        setup.execute("DROP TABLE orders")
        wait_until(lambda: "public.orders" in capture.progress.table_problems, capture=capture)
        setup.execute(TABLE.format("orders"))
        setup.execute("INSERT INTO orders VALUES (2, 0)")
        wait_until(lambda: not capture.progress.table_problems, capture=capture)
        setup.caught_up(capture)
        wait_until(lambda: "t" in [it.op for it in setup.read("orders")], capture=capture)
        setup.caught_up(capture)
    setup.check("orders")


def test_table_of_a_foreign_topic_is_left_out_while_running(setup: Setup) -> None:
    for schema in ("x", "y"):
        setup.execute(f"CREATE SCHEMA {schema}")
    setup.execute(TABLE.format("y.a"))
    with setup.running(tables=["x.*", "y.*"], topic="{name}.{table}") as capture:
        setup.caught_up(capture)
        setup.execute(TABLE.format("x.a"))
        setup.execute("INSERT INTO x.a VALUES (7, 0)")
        wait_until(lambda: "x.a" in capture.progress.table_problems, capture=capture)
        setup.execute("INSERT INTO y.a VALUES (1, 0)")
        setup.caught_up(capture)
    assert [it.key["id"] for it in read_topic(setup.bootstrap, f"{setup.name}.a")] == [1]


def test_dropped_key_of_a_captured_table_is_shown(setup: Setup) -> None:
    """PostgreSQL refuses updates of the application from then on."""
    setup.execute(TABLE.format("orders"))
    with setup.running(heartbeat_seconds=0.1) as capture:
        setup.caught_up(capture)
        setup.execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey")
        wait_until(lambda: "public.orders" in capture.progress.table_problems, capture=capture)
        problems = read_status(CaptureSettings(**setup.settings)).table_problems
        assert "so its UPDATE and DELETE statements fail" in problems["public.orders"]
        setup.execute("ALTER TABLE orders ADD PRIMARY KEY (id)")
        wait_until(lambda: not capture.progress.table_problems, capture=capture)
        setup.execute("INSERT INTO orders VALUES (1, 0)")
        setup.execute("UPDATE orders SET version = 1")
        setup.caught_up(capture)
    setup.check("orders")
