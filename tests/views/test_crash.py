"""A writer of views that is killed at any moment: readers see whole batches, before and after."""

from __future__ import annotations

import random
import signal
import subprocess
import sys

import pytest

from millstream.views import open_views
from tests.pipelines.stores.conftest import Database
from tests.views.conftest import Shop

KILLS = 2
USERS = ["ada", "bob", "carl", "dora"]


def resume(shop: Shop) -> Shop:
    """The writer's state, as its checkpoint would have it: all that is in the tables."""
    progress = shop.store.progress(shop.query)
    if progress is not None and progress.batch_id is not None:
        with open_views(shop.url, shop.query) as views, views.read() as v:
            shop.spent = {row["user"]: row["spent"] for row in v["by_user"].range()}
            shop.batch_id = progress.batch_id
            shop.offset = v.stamp.offsets["orders", 0]
    return shop


def write_forever(url: str) -> None:
    """In a process of its own; says when each batch is written."""
    with Database(url).open() as store:
        shop = resume(Shop(store, url).prepare())
        while True:
            shop.spend(len(USERS), **dict.fromkeys(USERS, 1))
            print(shop.batch_id, flush=True)


@pytest.mark.slow_with("postgres")
def test_killed_writer_leaves_whole_batches(database: Database) -> None:
    rng = random.Random(1)
    code = f"from tests.views.test_crash import write_forever; write_forever({database.url!r})"
    last = 0
    for _ in range(KILLS):
        writer = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert writer.stdout is not None
        for _ in range(rng.randint(1, 5)):
            written = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        with open_views(database.url, "shop") as views, views.read() as v:
            offset = v.stamp.offsets["orders", 0]
            assert v["total"].get(0) == {"id": 0, "spent": offset}
            assert {row["spent"] for row in v["by_user"].range()} == {offset // len(USERS)}
            assert offset >= (written + 1) * len(USERS)  # what was reported is there
            number = v.stamp.numbers["shop"]
            assert number * len(USERS) == offset > last
            last = offset
