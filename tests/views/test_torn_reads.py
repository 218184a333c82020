"""No read sees a part of a batch: readers while a writer writes, in SQLite and PostgreSQL.

In every batch, each user spends something and the sum of it goes to another view. Each record
spends one: the sum is the offset that the stamp names. A torn read would find another sum.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from millstream.views import Views, open_views
from tests.views.conftest import Shop

USERS = ["ada", "bob", "carl", "dora"]
WRITTEN_MIN = 3  # batches, while readers read


def read_many(views: Views, stopped: threading.Event, reads: int) -> int:
    """The number of stamps that were seen."""
    seen = set()
    last = 0
    for number in range(reads):
        if stopped.is_set():
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


def test_no_read_is_torn(shop: Shop) -> None:
    assert check_reads(shop, 200) >= WRITTEN_MIN
