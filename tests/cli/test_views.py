"""`millstream views serve` as a process, with a client."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from millstream.pipelines.stores import open_store
from tests.cli.conftest import Run
from tests.peers.patience import PATIENCE_SECONDS
from tests.views.conftest import Shop

MILLSTREAM = str(Path(sys.executable).with_name("millstream"))


def test_views_are_served_until_a_signal(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    with open_store(url) as store:
        Shop(store, url).prepare().spend(ada=5)
    process = subprocess.Popen(
        [MILLSTREAM, "views", "serve", url, "shop", "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words[:4] == ["views", "of", "shop", "at"]
        address = f"{words[4]}/by_user/rows/ada?at_least=orders:0:0"
        with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS) as answer:
            assert json.load(answer)["row"] == {"user": "ada", "spent": 5}
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0


def test_mistakes_are_one_line(run: Run) -> None:
    outcome = run("views", "serve", "sqlite:///shop.db", "shop", "--listen", "8092")
    assert outcome.exit_code == 2
    assert "write it as HOST:PORT" in outcome.err
    outcome = run("views", "serve", "redis://localhost", "shop")
    assert outcome.exit_code == 1
    assert "SQLite or PostgreSQL" in outcome.err
