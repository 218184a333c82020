"""Views over HTTP: a real server and real clients, on SQLite and PostgreSQL."""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from millstream.errors import StoreError
from millstream.views import Views, serving
from millstream.views.databases import PostgresWatch, SqliteWatch
from millstream.views.serving import Limits, ViewServer
from tests.peers.patience import PATIENCE_SECONDS
from tests.views.conftest import Shop

LIMITS = Limits(connections=8, rows=50, seconds=PATIENCE_SECONDS, wait_seconds=PATIENCE_SECONDS)


@contextmanager
def serve(views: Views, limits: Limits = LIMITS, names: Sequence[str] = ()) -> Iterator[ViewServer]:
    with ViewServer(("127.0.0.1", 0), views, limits, names) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server(views: Views) -> Iterator[ViewServer]:
    with serve(views) as served:
        yield served


def connect(server: ViewServer) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(*server.server_address[:2], timeout=PATIENCE_SECONDS)


def ask(
    server: ViewServer, path: str, body: str | bytes | None = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    """The status and the document of an answer, on a connection of its own."""
    connection = connect(server)
    try:
        connection.request("GET" if body is None else "POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_rows_are_found_by_key_and_range(shop: Shop, server: ViewServer) -> None:
    shop.spend(3, **{"ada": 1, "bob": 2, "a/ö b": 3})
    status, answer = ask(server, "/views/by_user/rows/ada")
    assert (status, answer["row"]) == (200, {"user": "ada", "spent": 1})
    assert answer["stamp"]["offsets"] == {"orders": {"0": 3}}
    assert answer["stamp"]["topic_ids"] == {"orders": "id-1"}
    _, answer = ask(server, "/views/by_user/rows/a%2F%C3%B6%20b")
    assert answer["row"]["spent"] == 3
    _, answer = ask(server, "/views/total/rows/0")
    assert answer["row"] == {"id": 0, "spent": 6}
    _, answer = ask(server, "/views/by_user/rows?low=ad&high=c&descending=true")
    assert [it["user"] for it in answer["rows"]] == ["bob", "ada"]
    _, answer = ask(server, "/views/by_user/rows?limit=1&low=b")
    assert [it["user"] for it in answer["rows"]] == ["bob"]
    _, answer = ask(server, "/views")
    columns = {"user": "string", "spent": "long"}
    assert answer["views"]["by_user"] == {"key": ["user"], "columns": columns}
    assert ask(server, "/stamp")[1]["stamp"]["numbers"] == {"shop": 1}


def test_sql_reads_all_views(shop: Shop, server: ViewServer) -> None:
    shop.spend(ada=1, bob=2)
    text = 'SELECT u."user" AS who, t.spent FROM by_user u, total t WHERE u.spent > 1'
    assert ask(server, "/sql", text)[1]["rows"] == [{"who": "bob", "spent": 3}]
    mark = "?" if shop.url.startswith("sqlite") else "%s"
    body = json.dumps({"sql": f"SELECT spent FROM by_user WHERE spent > {mark}", "values": [1]})
    answer = ask(server, "/sql", body, **{"Content-Type": "application/json"})
    assert answer[1]["rows"] == [{"spent": 2}]


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT "


BAD_REQUESTS: list[tuple[str, Any, int, str]] = [
    ("/", None, 404, "nothing at /"),
    ("/views/nothing/rows/1", None, 404, "no view nothing; there are by_user, total"),
    ("/views/by_user/rows/carl", None, 404, "no row with key carl"),
    ("/views/total/rows/x", None, 400, "key column id is long; 'x' is not"),
    ("/views/total/rows/1/2", None, 400, "the key is (id), 1 values; 2 are given"),
    ("/views/total/rows?limit=51", None, 400, "at most 50 rows"),
    ("/views/total/rows?lim=1", None, 400, "no parameter lim"),
    ("/stamp?at_least=orders/0/1", None, 400, "write topic:partition:offset"),
    ("/stamp?at_least=users:0:1", None, 400, "not of topic users, but of orders"),
    ("/stamp?at_least=orders:0:1&timeout=0.01", None, 504, "up to offset 1"),
    ("/stamp?timeout=1e9", None, 400, "timeout=1e9"),
    ("/views/by_user/changes?after=x", None, 400, "no id of an event"),
    ("/views/nothing/changes", None, 404, "no view nothing"),
    ("/sql", None, 405, "POST"),
    ("/views", "SELECT 1", 404, "nothing at /views takes a POST"),
    ("/sql", "", 400, "begins with SELECT"),
    ("/sql", "DELETE FROM by_user", 400, "begins with SELECT"),
    ("/sql", "SELECT nothing FROM by_user", 400, "the query failed"),
    ("/sql", b"\xff", 400, "not UTF-8"),
    ("/sql", ENDLESS + "i FROM n LIMIT 51", 422, "more than 50 rows"),
]


@pytest.mark.slow_with("postgres")
def test_bad_requests_say_what_is_wrong(shop: Shop, server: ViewServer) -> None:
    shop.spend(ada=1)
    for path, body, status, words in BAD_REQUESTS:
        found, answer = ask(server, path, body)
        assert (found, list(answer)) == (status, ["error"]), path
        assert words in answer["error"]


def test_query_that_takes_too_long_is_stopped(shop: Shop, views: Views) -> None:
    shop.spend(ada=1)
    with serve(views, Limits(seconds=0.05)) as server:
        status, answer = ask(server, "/sql", ENDLESS + "count(*) FROM n")
        assert (status, "longer than 0.05 seconds" in answer["error"]) == (422, True)


def raw(server: ViewServer, request: bytes) -> bytes:
    with socket.create_connection(server.server_address[:2], PATIENCE_SECONDS) as client:
        client.sendall(request)
        answer = b""
        while part := client.recv(65536):
            answer += part
    return answer


BROKEN: list[tuple[bytes, bytes]] = [
    (b"PUT /sql HTTP/1.1\r\n\r\n", b"501"),
    (b"GET /views HTTP/9.9\r\n\r\n", b"505"),
    (b"nonsense of four words\r\n\r\n", b"400"),
    (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", b"414"),
    (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"431"),
    (b"POST /sql HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", b"413"),
    (b"POST /sql HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"413"),
    (b"POST /sql HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"411"),
]


def test_broken_http_is_answered_with_json(server: ViewServer) -> None:
    for request, status in BROKEN:
        head, _, body = raw(server, request).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 " + status), request[:50]
        assert "error" in json.loads(body)


def test_reader_waits_for_its_own_write(shop: Shop, server: ViewServer) -> None:
    shop.spend(ada=1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, server, "/views/by_user/rows/bob?at_least=orders:0:2")
        shop.spend(bob=1)
        shop.spend(bob=1)
        status, answer = waiting.result()
    assert (status, answer["row"]) == (200, {"user": "bob", "spent": 2})


def test_no_answer_is_torn_while_batches_are_written(shop: Shop, server: ViewServer) -> None:
    """Each record spends one, so that both sums are the offset of the stamp."""
    done = threading.Event()
    shop.spend(2, ada=1, bob=1)

    def write() -> None:
        while not done.is_set():
            shop.spend(2, ada=1, bob=1)

    def read() -> None:
        connection = connect(server)
        seen: set[int] = set()
        text = "SELECT (SELECT sum(spent) FROM by_user) AS a, (SELECT spent FROM total) AS b"
        for number in itertools.count():
            if number >= 50 and len(seen) > 2:
                break
            connection.request("POST", "/sql", text)  # one connection for all requests
            answer = json.loads(connection.getresponse().read())
            offset = answer["stamp"]["offsets"]["orders"]["0"]
            assert [{k: int(v) for k, v in it.items()} for it in answer["rows"]] == [
                {"a": offset, "b": offset}
            ]
            seen.add(offset)
        connection.close()

    with ThreadPoolExecutor(3) as pool:
        writer = pool.submit(write)
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for it in readers:
                it.result(PATIENCE_SECONDS)
        finally:
            done.set()
        writer.result()


def open_events(
    server: ViewServer, path: str = "/views/by_user/changes", **headers: str
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = connect(server)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/event-stream"
    return connection, answer


def next_event(answer: http.client.HTTPResponse) -> dict[str, Any]:
    fields: dict[str, str] = {}
    while True:
        line = answer.readline().decode().rstrip("\n")
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif not line and "data" in fields:
            return {"event": fields["event"], "id": fields["id"], **json.loads(fields["data"])}


def test_changes_are_sent_as_batches_are_written(shop: Shop, server: ViewServer) -> None:
    shop.spend(ada=1)
    connection, events = open_events(server)
    assert next_event(events)["event"] == "begin"
    shop.spend(ada=1)
    first = next_event(events)
    assert first["changes"] == [
        {"before": {"user": "ada", "spent": 1}, "after": {"user": "ada", "spent": 2}}
    ]
    shop.spend(ada=None)
    assert next_event(events)["changes"][0]["after"] is None
    connection.close()
    connection, events = open_events(server, **{"Last-Event-ID": first["id"]})
    assert next_event(events)["changes"][0]["after"] is None
    connection.close()


@pytest.mark.slow_with("postgres")
def test_changes_add_up_to_the_view_while_batches_are_written(
    shop: Shop, server: ViewServer
) -> None:
    shop.keeps = 40  # as many as are written: a follower that is behind is not reset
    shop.prepare()
    shop.spend(ada=1)
    connection, events = open_events(server)
    rows = {"ada": 1}
    assert next_event(events)["stamp"]["offsets"] == {"orders": {"0": 1}}
    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(lambda: [shop.spend(**{f"user{n % 5}": n}) for n in range(1, 31)])
        while True:
            event = next_event(events)
            assert event["event"] == "changes"
            for change in event["changes"]:
                before, after = change["before"], change["after"]
                assert rows.get(after["user"]) == (before and before["spent"])
                rows[after["user"]] = after["spent"]
            if event["stamp"]["offsets"]["orders"]["0"] == 31:
                break
        writer.result()
    connection.close()
    assert rows == shop.spent


@pytest.mark.slow_with("postgres")
def test_client_that_leaves_in_the_middle_of_changes_frees_its_connection(
    shop: Shop, views: Views
) -> None:
    shop.spend(ada=1)
    with serve(views, Limits(connections=1)) as server:
        connection, events = open_events(server)
        next_event(events)
        status, answer = ask(server, "/stamp")
        assert (status, answer["error"]) == (
            503,
            "there are 1 connections already; try again later",
        )
        events.close()
        connection.close()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while ask(server, "/stamp")[0] != 200:
            assert time.monotonic() < deadline


@pytest.mark.slow_with("postgres")
def test_events_end_when_the_server_stops(shop: Shop, views: Views) -> None:
    shop.spend(ada=1)
    with serve(views) as server:
        connection, events = open_events(server)
        next_event(events)
    assert b"event:" not in events.read()
    connection.close()


@pytest.mark.slow_with("postgres")
def test_events_end_with_the_reason_when_views_are_gone(shop: Shop, server: ViewServer) -> None:
    shop.spend(ada=1)
    connection, events = open_events(server)
    next_event(events)
    shop.store.list_views("shop", [])
    rest = events.read().decode()
    assert "event: failed" in rest
    assert "no views of shop" in rest
    connection.close()


def test_events_end_with_the_reason_when_the_store_is_gone(
    shop: Shop, server: ViewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with a second response within the stream."""
    shop.spend(ada=1)
    connection, events = open_events(server)
    next_event(events)

    def fail(*arguments: Any) -> None:
        raise StoreError("cannot wait for views: disk failed")

    for watch in (SqliteWatch, PostgresWatch):
        monkeypatch.setattr(watch, "wait", fail)
    shop.spend(ada=1)
    rest = events.read().decode()
    assert "event: failed" in rest
    assert "disk failed" in rest
    assert "HTTP/1.1" not in rest
    connection.close()


@pytest.mark.slow_with("postgres")
def test_answer_that_is_too_large_is_refused(
    shop: Shop, server: ViewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.spend(ada=1)
    monkeypatch.setattr(serving, "_ANSWER_BYTES_MAX", 10)
    status, answer = ask(server, "/views")
    assert (status, "more than 10" in answer["error"]) == (422, True)


def test_bug_is_answered_and_logged(
    shop: Shop, server: ViewServer, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    shop.spend(ada=1)
    monkeypatch.setattr(serving, "_described", lambda view: 1 / 0)
    assert ask(server, "/views")[0] == 500
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.slow_with("postgres")
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8092", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("10.1.2.3:1", 200),
        ("Views.Example:8092", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:8092", 421),
        ("", 421),
        ("[x", 421),
    ],
)
def test_server_answers_to_its_own_names_only(
    shop: Shop, views: Views, host: str, status: int
) -> None:
    shop.spend(ada=1)
    with serve(views, names=["views.example"]) as server:
        assert ask(server, "/stamp", Host=host)[0] == status


@pytest.mark.slow_with("postgres")
def test_client_that_sends_byte_by_byte_is_disconnected(
    server: ViewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_REQUEST_SECONDS_MAX", 0.2)
    with socket.create_connection(server.server_address[:2], timeout=0.05) as client:
        client.sendall(b"GET /stamp HTTP/1.1\r\nX: ")
        for _ in range(200):
            try:
                client.sendall(b"x")
                assert client.recv(1) == b""
                break
            except TimeoutError:  # it is connected still
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("the server waits for the rest of the request")


@pytest.mark.slow_with("postgres")
def test_client_that_does_not_take_its_answer_is_disconnected(
    shop: Shop, server: ViewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_ANSWER_SECONDS_MAX", 0.2)
    shop.spend(ada=1)
    text = "repeat('x', 9000000)" if "postgres" in shop.url else "printf('%.*c', 9000000, 'x')"
    body = f"SELECT {text} AS t"
    head = f"POST /sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(server.server_address[:2], timeout=PATIENCE_SECONDS) as client:
        client.sendall((head + body).encode())
        client.recv(1)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while _is_handling() and time.monotonic() < deadline:
            client.recv(1)  # ever so slowly
        assert not _is_handling()


def _is_handling() -> bool:
    return any("process_request_thread" in it.name for it in threading.enumerate())


def test_numbers_of_a_request_are_exact(shop: Shop, server: ViewServer) -> None:
    if shop.url.startswith("sqlite"):
        pytest.skip("SQLite has no decimals")
    shop.spend(ada=1)
    text = '{"sql": "SELECT %s + 0.1 AS n", "values": [12345678901234567.1]}'
    answer = ask(server, "/sql", text, **{"Content-Type": "application/json"})
    assert answer[1]["rows"] == [{"n": "12345678901234567.2"}]
    text = '{"sql": "SELECT %s AS n", "values": [NaN]}'
    status, refused = ask(server, "/sql", text, **{"Content-Type": "application/json"})
    assert (status, refused["error"]) == (400, "the body is not JSON: NaN is no number of JSON")
