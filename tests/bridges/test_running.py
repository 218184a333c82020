"""A bridge as a whole."""

from __future__ import annotations

import time

import pytest
import zmq

from millstream.bridges.config import parse_config
from millstream.bridges.running import Bridge
from millstream.errors import MillstreamError
from millstream.testing.pytest_plugin import SharedBroker
from tests.bridges.conftest import PATIENCE_SECONDS, bridge_to, request, wait_for


def test_bridge_shows_its_addresses_and_metrics(millstream: SharedBroker) -> None:
    topic = millstream.unique_topic()
    with bridge_to(
        millstream,
        metrics="127.0.0.1:0",
        http={"listen": "127.0.0.1:0", "produce": [topic]},
        statsd={"app": {"listen": "127.0.0.1:0", "topic": topic}},
    ) as bridge:
        assert bridge.http is not None
        assert bridge.metrics is not None
        body = {"records": [{"value": 1}]}
        headers = {"content-type": "application/json"}
        assert request(bridge.http.address, "POST", f"/topics/{topic}", body, headers)[0] == 200
        address = bridge.metrics.url.removeprefix("http://").removesuffix("/metrics")
        text = request(address, "GET", "/metrics")[1].decode()
        assert f'millstream_bridge_records_in_total{{topic="{topic}"}} 1' in text
        assert request(address, "GET", "/ready")[0] == 200
        shown = bridge.addresses
        assert [it.partition(":")[0] for it in shown] == ["http", "statsd udp", "http"]


def test_failure_of_a_part_is_seen(millstream: SharedBroker) -> None:
    tables = {"app": {"listen": "127.0.0.1:0", "topic": millstream.unique_topic()}}
    with bridge_to(millstream, statsd=tables) as bridge:
        (receiver,) = bridge.receivers
        assert bridge.problems() == []
        receiver._take_some = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
        wait_for(bridge.problems)
        assert bridge.problems() == ["statsd app: ZeroDivisionError: division by zero"]


def test_zeromq_runs_in_both_directions_and_says_what_keeps_it(millstream: SharedBroker) -> None:
    """The target is a topic that may not exist, so what came waits, and the bridge is not ready."""
    source, bind = millstream.unique_topic(), ["tcp://127.0.0.1:*"]
    with bridge_to(
        millstream,
        metrics="127.0.0.1:0",
        zeromq={
            "in": {"a": {"type": "pull", "bind": bind, "topic": ".."}},
            "out": {source: {"type": "pub", "bind": bind, "topic": source}},
        },
    ) as bridge:
        assert bridge.metrics is not None
        shown = [it.rpartition(":")[0] for it in bridge.addresses]
        assert shown[:2] == ["zeromq pull tcp://127.0.0.1", "zeromq pub tcp://127.0.0.1"]
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        out = context.socket(zmq.PUSH)
        out.connect(bridge.zeromq_in[0].address)
        out.send(b"hello")
        until = time.monotonic() + PATIENCE_SECONDS
        while not bridge.problems():
            assert time.monotonic() < until
            time.sleep(0.05)
        assert bridge.problems()[0].startswith("zeromq a: ..: ")
        address = bridge.metrics.url.removeprefix("http://").removesuffix("/metrics")
        assert request(address, "GET", "/ready")[0] == 503
        context.destroy(0)


def test_part_that_cannot_start_stops_the_others(millstream: SharedBroker) -> None:
    with bridge_to(millstream, http={"listen": "127.0.0.1:0"}) as first:
        assert first.http is not None
        config = parse_config(
            {
                "broker": millstream.bootstrap_servers,
                "http": {"listen": first.http.address},
                "statsd": {"a": {"listen": "127.0.0.1:0", "topic": "t"}},
            }
        )
        with pytest.raises(MillstreamError, match="cannot listen"):
            Bridge(config)
