"""The endpoint in a thread."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from millstream.errors import ConfigError, MillstreamError
from millstream.metrics.exposition import gauge
from millstream.metrics.threaded import MetricsThread, parse_address


def test_it_serves_until_it_is_stopped() -> None:
    value, problems = [1.0], ["not yet"]
    served = MetricsThread(
        "127.0.0.1:0", lambda: [gauge("test_value", "A value.", value[0])], lambda: problems
    )
    try:
        value[0] = 2.0
        with urllib.request.urlopen(served.url, timeout=60) as response:
            assert response.read().endswith(b"test_value 2\n")
        ready = served.url.replace("metrics", "ready")
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(ready, timeout=60)
        problems.clear()
        with urllib.request.urlopen(ready, timeout=60) as response:
            assert response.read() == b"ready\n"
        with pytest.raises(MillstreamError, match="cannot listen on"):
            MetricsThread("{}:{}".format(*served.address), list)
    finally:
        served.stop()
        served.stop()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(served.url, timeout=60)


def test_a_defect_in_one_scrape_does_not_end_it() -> None:
    def collect() -> list[object]:
        raise RuntimeError("a defect")

    served = MetricsThread("127.0.0.1:0", collect)  # type: ignore[arg-type]
    try:
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            urllib.request.urlopen(served.url, timeout=60)
        with urllib.request.urlopen(served.url.replace("metrics", "health"), timeout=60) as it:
            assert it.read() == b"ok\n"
    finally:
        served.stop()


@pytest.mark.parametrize("text", ["9405", "localhost", "h:x", "h:99999"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9405"):
        parse_address(text)
