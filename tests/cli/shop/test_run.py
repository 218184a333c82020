"""The shop's run, as far as it goes without Spark: a broker, topics, customers, processes."""

from __future__ import annotations

import os

import pytest

from millstream.cli.failures import CommandFailed
from millstream.cli.shop import history
from millstream.cli.shop.run import ShopRun, kill_group
from millstream.pipelines.running.settings import load_settings


def test_shop_opens_and_customers_come() -> None:
    with ShopRun(rate=500, seed=1) as run:
        run.open()
        assert (run.directory / "shop.py").exists()
        assert (run.directory / "sales_2.py").exists()
        assert load_settings(run.directory, environment={}).spark == history.SPARK
        run.customers.stop()
        enrich, sales, interest = run.watcher.look().positions
        ledger = run.customers.ledger
        assert enrich.lag == len(ledger.orders) + ledger.again + len(ledger.poison)
        assert interest.lag == ledger.views
        assert (sales.done, sales.lag) == (0, 0)
        directory = run.directory
    assert not directory.exists()


def test_pipelines_that_end_by_themselves_are_an_error() -> None:
    with ShopRun(rate=1, seed=1) as run:
        run._driver = run._spawn("run", "-c", "print('starting'); exit('no room')")
        run._driver.wait()
        with pytest.raises(CommandFailed, match="the pipelines ended with 1: no room"):
            run.check_pipelines()


def test_second_version_that_ends_by_itself_is_an_error() -> None:
    with ShopRun(rate=1, seed=1) as run:
        run._second = run._spawn("deploy", "-c", "exit('no such pipeline')")
        run._second.wait()
        with pytest.raises(CommandFailed, match="version 2 of sales ended with 1: no such pipe"):
            run.check_pipelines()


def test_settings_of_the_user_do_not_reach_the_shop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_STORE", "postgresql://db/precious")
    with ShopRun(rate=1, seed=1) as run:
        run._spawn("run", "-c", "import os; print(os.environ.get('MILLSTREAM_STORE'))").wait()
        assert run.last_words("run") == "None"


def test_batch_that_fails_is_an_error() -> None:
    with ShopRun(rate=1, seed=1) as run:
        run._history = run._spawn("history", "-c", "exit('no log')")
        run._history.wait()
        with pytest.raises(CommandFailed, match="the batch over the log failed: no log"):
            _ = run.has_history


def test_kill_reaches_all_that_a_process_started() -> None:
    program = (
        "import os, subprocess, time;"
        "pipe = os.open('pipe', os.O_WRONLY); os.set_inheritable(pipe, True);"
        "subprocess.Popen(['sleep', '600'], close_fds=False);"
        "os.write(pipe, b'up'); time.sleep(600)"
    )
    with ShopRun(rate=1, seed=1) as run:
        os.mkfifo(run.directory / "pipe")
        process = run._spawn("run", "-c", program)
        with (run.directory / "pipe").open("rb", buffering=0) as pipe:
            assert pipe.read(2) == b"up"
            kill_group(process)
            assert pipe.read() == b""  # it ends when nobody is left who could write to it
        assert process.returncode == -9
