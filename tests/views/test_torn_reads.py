"""No read sees a part of a batch: readers while a writer writes, in SQLite and PostgreSQL.

In every batch, each user spends something and the sum of it goes to another view. Each record
spends one: the sum is the offset that the stamp names. A torn read would find another sum.
"""

from __future__ import annotations

import http.client
import itertools
import json
import multiprocessing
import threading
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from millstream.pipelines.stores import open_store
from millstream.views import Views, open_views
from millstream.views.serving import ViewServer
from tests.peers.patience import PATIENCE_SECONDS
from tests.views.conftest import Shop

USERS = ["ada", "bob", "carl", "dora"]
WRITTEN_MIN = 3  # batches, while readers read


def read_many(views: Views, stopped: threading.Event, reads: int) -> int:
    """So often, and more if few stamps were seen; returns the number of those."""
    seen: set[int] = set()
    last = 0
    for number in itertools.count():
        if stopped.is_set() or (number >= reads and len(seen) >= WRITTEN_MIN):
            break
        with views.read(timeout=60) as v:
            sum_of_users = sum(row["spent"] for row in v["by_user"].range())
            total = v["total"].get(0)
            offset = v.stamp.offsets["orders", 0]
            assert total == {"id": 0, "spent": offset}, f"torn in read {number}"
            assert sum_of_users == offset, f"torn in read {number}"
            assert offset >= last, "a later read sees an earlier stamp"
            last = offset
            seen.add(offset)
    return len(seen)


def check_reads(shop: Shop, reads: int, readers: int = 2) -> int:
    """Read so often in all, while batches are written; returns how many batches were."""
    stopped, done = threading.Event(), threading.Event()
    shop.spend(4, **dict.fromkeys(USERS, 1))

    def write() -> None:
        while not done.is_set():
            amounts = dict.fromkeys(USERS, 1 + shop.batch_id % 3)
            shop.spend(sum(amounts.values()), **amounts)

    with open_views(shop.url, "shop") as views, ThreadPoolExecutor(readers + 1) as pool:
        writer = pool.submit(write)
        try:
            found = [
                pool.submit(read_many, views, stopped, reads // readers) for _ in range(readers)
            ]
            seen = [it.result() for it in found]
        finally:
            stopped.set()
            done.set()
        writer.result()
    return max(seen)


@pytest.mark.slow_with("postgres")
def test_no_read_is_torn(shop: Shop) -> None:
    assert check_reads(shop, 200) >= WRITTEN_MIN


READS = 1_000_000
HTTP_READS = 50_000
PROCESSES = 2
SUMS = "SELECT (SELECT sum(spent) FROM by_user) AS users, (SELECT spent FROM total) AS total"


def read_in_process(url: str, reads: int) -> int:
    """The number of stamps that were seen."""
    with open_views(url, "shop") as views:
        return read_many(views, threading.Event(), reads)


def ask_in_process(host: str, port: int, reads: int) -> int:
    """As `read_in_process`, over HTTP."""
    connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_SECONDS)
    seen: set[int] = set()
    last = 0
    for number in range(reads):
        connection.request("POST", "/sql", SUMS)
        answer = json.loads(connection.getresponse().read())
        offset = answer["stamp"]["offsets"]["orders"]["0"]
        assert answer["rows"] == [{"users": offset, "total": offset}], f"torn in read {number}"
        assert offset >= last, "a later read sees an earlier stamp"
        last = offset
        seen.add(offset)
    connection.close()
    return len(seen)


def write_while(shop: Shop, readers: list[Future[int]]) -> None:
    """Each batch changes all rows, until the readers are done."""
    while not all(it.done() for it in readers):
        amounts = dict.fromkeys(USERS, 1 + shop.batch_id % 3)
        shop.spend(sum(amounts.values()), **amounts)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_read_in_a_million_is_torn(tmp_path: Path) -> None:
    """Readers are processes of their own, and the writer never pauses."""
    url = f"sqlite:///{tmp_path}/shop.db"
    with (
        open_store(url) as store,
        ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool,
    ):
        shop = Shop(store, url).prepare()
        shop.spend(4, **dict.fromkeys(USERS, 1))
        share = READS // PROCESSES
        readers = [pool.submit(read_in_process, url, share) for _ in range(PROCESSES)]
        write_while(shop, readers)
        assert min(it.result() for it in readers) >= WRITTEN_MIN


@pytest.mark.slow
def test_no_answer_over_http_is_torn(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    with (
        open_store(url) as store,
        open_views(url, "shop") as views,
        ViewServer(("127.0.0.1", 0), views) as server,
        ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool,
    ):
        shop = Shop(store, url).prepare()
        shop.spend(4, **dict.fromkeys(USERS, 1))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            host, port = str(server.server_address[0]), server.server_address[1]
            share = HTTP_READS // PROCESSES
            readers = [pool.submit(ask_in_process, host, port, share) for _ in range(PROCESSES)]
            write_while(shop, readers)
            assert min(it.result() for it in readers) >= WRITTEN_MIN
        finally:
            server.shutdown()
            thread.join()
