"""The metrics of a running capture, as a scraper reads them."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from millstream.connect.capture.metrics import families, problems, serve
from millstream.connect.capture.position import CaptureState, TableState
from millstream.connect.capture.progress import Progress
from millstream.connect.capture.settings import CaptureSettings
from millstream.connect.capture.source import Slot
from millstream.errors import MillstreamError
from millstream.metrics.exposition import render
from tests.connect.capture.harness import TABLE, Setup, wait_until
from tests.peers.servers import free_port

SETTINGS = CaptureSettings(name="shop", database="", tables=["public.*"], lag_alarm_bytes=1000)


def scrape(port: int, path: str = "/metrics") -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
        return parse(answer.read().decode())


def parse(text: str) -> dict[str, float]:
    """Values by name and labels, without the common ones."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name.removeprefix("millstream_capture_")] = float(value)
    return found


def test_running_capture_serves_its_metrics(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    setup.execute("INSERT INTO orders SELECT g, 0 FROM generate_series(1, 7) g")
    port = free_port()
    label = f'{{capture="{setup.name}"}}'
    with setup.running(metrics=f"127.0.0.1:{port}", messages=False) as capture:
        setup.caught_up(capture)
        setup.execute("INSERT INTO orders VALUES (8, 0)")
        setup.caught_up(capture)
        wait_until(lambda: capture.progress.slot is not None, capture=capture)
        found = scrape(port)
        assert found["rows_copied_total" + label] == 7
        assert found["records_total" + label] == 1
        assert found["lag_alarm" + label] == 0
        assert found["lag_bytes" + label] >= 0
        assert found["position_age_seconds" + label] >= 0
        assert found[f'phase{{capture="{setup.name}",phase="streaming"}}'] == 1
        assert found[f'table_copied{{capture="{setup.name}",table="public.orders"}}'] == 1
        with pytest.raises(urllib.error.HTTPError, match="404"):
            scrape(port, "/")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready") as answer:
            assert answer.read() == b"ready\n"
    with pytest.raises(urllib.error.URLError):
        scrape(port)


def test_alarm_and_lag_are_metrics() -> None:
    progress = Progress()
    tables = {'public.a"b': TableState(1)}
    progress.state = CaptureState("streaming", "1", 1, "shop", "s", "p", 5, tables=tables)
    progress.slot = Slot("pgoutput", "shop", None, "extended", "0/1", "0/2", 500, 2000, None)
    progress.table_problems = {"public.b": "left out"}
    progress.written_at = 90.0
    progress.retrying(OSError("gone"))
    found = parse("".join(render(families(SETTINGS, progress, now=100.5))))
    assert found['lag_bytes{capture="shop"}'] == 500
    assert found['retained_bytes{capture="shop"}'] == 2000
    assert found['lag_alarm{capture="shop"}'] == 1
    assert found['position_age_seconds{capture="shop"}'] == 10.5
    assert found['retries_total{capture="shop"}'] == 1
    assert found['phase{capture="shop",phase="retrying"}'] == 1
    assert found['table_copied{capture="shop",table="public.a\\"b"}'] == 0
    assert found['table_problem{capture="shop",table="public.b"}'] == 1
    assert not any(name.startswith("safe_bytes") for name in found)
    assert problems(progress) == ["the capture is retrying"]


def test_address_in_use_is_named() -> None:
    port = free_port()
    settings = CaptureSettings(
        name="a", database="", tables=["public.*"], metrics=f"127.0.0.1:{port}"
    )
    server = serve(settings, Progress())
    try:
        assert server.address == ("127.0.0.1", port)
        with pytest.raises(MillstreamError, match=rf"cannot listen on 127.0.0.1:{port} \(metrics"):
            serve(settings, Progress())
    finally:
        server.stop()
