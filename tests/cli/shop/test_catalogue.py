"""The demo's catalogue: an index and a table that follow a database, over a kill."""

from __future__ import annotations

import sqlite3

import pytest

from millstream.cli.shop import catalogue as catalogue_module
from millstream.cli.shop.catalogue import FOLLOWERS, LAST
from millstream.cli.shop.database import why_missing
from millstream.cli.shop.run import ShopRun
from tests.peers.patience import wait_until

needs_postgres = pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))


@needs_postgres
def test_followers_equal_the_database_over_a_kill() -> None:
    with ShopRun(rate=1, seed=1) as run:
        run.broker.start()
        catalogue = run.catalogue
        catalogue.start()
        wait_until(lambda: catalogue.is_open)
        wait_until(lambda: len(catalogue.look().found) > 0)
        assert catalogue.kill() == ("capture", "index")
        seen = catalogue.look().changes
        wait_until(lambda: catalogue.look().changes > seen)  # the buyer goes on
        catalogue.restart()
        catalogue.close()
        wait_until(catalogue.has_followed)
        findings = catalogue.audit()
        assert [it.what for it in findings] == [f"products in the {it}" for it in FOLLOWERS]
        assert all(it.holds for it in findings), findings
        assert findings[0].expected > 20
        with sqlite3.connect(run.directory / "table.db") as connection:
            connection.execute("DELETE FROM products WHERE name = ?", (LAST,))
        assert not catalogue.has_followed()
        assert [(it.lost, it.doubled) for it in catalogue.audit()] == [(0, 0), (1, 0)]


def test_shop_without_postgres_has_no_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue_module, "why_missing", lambda: "it is not installed")
    with ShopRun(rate=1, seed=1) as run:
        run.catalogue.start()
        assert run.catalogue.missing == "it is not installed"
        assert not run.catalogue.is_open
        assert run.catalogue.kill() == ()
