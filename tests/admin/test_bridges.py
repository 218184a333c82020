"""The board of bridges: those that run, were killed, came again, run twice; and forgetting them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.admin.bridges import (
    BRIDGES_MAX,
    SETTINGS,
    TOPIC,
    BridgeBoard,
    BridgeStatus,
    Count,
    ShownBridge,
    find_bridge,
    forget_bridge,
    read_bridges,
)
from millstream.admin.following import create_missing, write_records
from millstream.admin.pipeline_records import encode
from millstream.client.cluster import Cluster
from millstream.errors import ConfigError

NOW = 1_700_000_000_000
EDGE = BridgeStatus("edge", "r1", started_ms=NOW, addresses=("http://127.0.0.1:80",))


def counted(into: int = 0, out: int = 0, lost: int = 0, bad: int = 0) -> tuple[Count, ...]:
    return (
        Count("records_in", into, {"topic": "orders"}),
        Count("records_out", out),
        Count("mold_lost", lost, {"stream": "prices"}),
        Count("zeromq_bad_messages", bad, {"reason": "too large"}),
        Count("http_requests", 9),
    )


def put(board: BridgeBoard, status: BridgeStatus, at: int) -> None:
    board.take(f"status:{status.name}".encode(), encode(status), at)


def only(board: BridgeBoard, now: int) -> ShownBridge:
    (shown,) = board.bridges(now)
    return shown


def test_counts_are_summed_by_kind_and_become_rates() -> None:
    board = BridgeBoard()
    put(board, replace(EDGE, counts=counted(10, 5)), NOW)
    put(board, replace(EDGE, counts=counted(30, 5, 3, 2)), NOW + 2_000)
    shown = only(board, NOW + 2_000)
    totals = [shown.status.total(it) for it in ("in", "out", "lost", "bad", "other")]
    assert totals == [30, 5, 3, 2, 9]
    assert shown.history[-1] == (NOW + 2_000, 10.0, 0.0, 3)
    assert (shown.state, shown.is_running) == ("running", True)
    put(board, replace(EDGE, problems=("statsd app: OSError",)), NOW + 3_000)
    assert only(board, NOW + 3_000).state == "failing"
    assert only(board, NOW + 3_000).history[-1].in_per_second == 0  # counts went down


def test_bridge_that_was_killed_is_lost_and_one_that_was_stopped_is_not() -> None:
    board = BridgeBoard()
    put(board, EDGE, NOW)
    assert only(board, NOW + 12_000).state == "running"
    assert only(board, NOW + 12_001).state == "lost"
    put(board, replace(EDGE, state="stopped", every_ms=0), NOW + 20_000)
    assert only(board, NOW + 10**9).state == "stopped"


def test_bridge_that_was_restarted_is_not_its_own_twin() -> None:
    board = BridgeBoard()
    put(board, EDGE, NOW)
    again = replace(EDGE, run="r2", started_ms=NOW + 1_000)
    put(board, again, NOW + 1_000)
    assert only(board, NOW + 1_000).twins == ()
    put(board, EDGE, NOW + 2_000)
    put(board, again, NOW + 3_000)
    assert only(board, NOW + 3_000).twins == ("r1",)
    assert only(board, NOW + 60_000).twins == ()


def test_records_that_are_not_right_are_ignored() -> None:
    board = BridgeBoard()
    for key, value in (
        (None, b"{}"),
        (b"about:edge", encode(EDGE)),
        (b"status:other", encode(EDGE)),
        (b"status:edge", b"{"),
        (b"status:edge", b'{"name": "edge", "run": 3}'),
        (b"status:edge", b'{"name": "edge", "run": "r", "counts": [{"name": "x", "value": NaN}]}'),
    ):
        board.take(key, value, NOW)
    assert (board.ignored, board.bridges(NOW)) == (6, [])


def test_memory_is_bounded_and_a_null_forgets() -> None:
    board = BridgeBoard()
    for number in range(BRIDGES_MAX + 5):
        put(board, replace(EDGE, name=f"b{number}"), NOW)
    assert len(board.bridges(NOW)) == BRIDGES_MAX
    for run in range(10):
        put(board, replace(EDGE, name="b9", run=str(run)), NOW)
    board.take(b"status:b9", None, NOW)
    assert "b9" not in [it.name for it in board.bridges(NOW)]


def test_only_a_bridge_that_has_ended_is_forgotten(cluster: Cluster) -> None:
    create_missing(cluster, {TOPIC: SETTINGS})
    write_records(cluster, TOPIC, [("status:edge", encode(replace(EDGE, every_ms=60_000)))])
    (shown,) = read_bridges(cluster, NOW)
    with pytest.raises(ConfigError, match="edge is running: stop it first"):
        forget_bridge(cluster, shown)
    write_records(cluster, TOPIC, [("status:edge", encode(replace(EDGE, state="stopped")))])
    found = read_bridges(cluster, NOW)
    forget_bridge(cluster, find_bridge(found, "edge"))
    assert read_bridges(cluster, NOW) == []
    with pytest.raises(ConfigError, match=r"there is no bridge edge \(known: none\)"):
        find_bridge([], "edge")
