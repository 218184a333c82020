"""Positions and changes in transactions of a real broker."""

from __future__ import annotations

import socket
import uuid
from dataclasses import replace
from typing import Any

import pytest

from millstream.broker.embedded import Broker
from millstream.client.transactions import Transaction, begin_transaction
from millstream.connect.capture import output as module
from millstream.connect.capture.encoding import ChangeBuffer, take_columns
from millstream.connect.capture.output import CaptureFenced, Output, Owner, TransactionLost
from millstream.connect.capture.position import CaptureState, Position
from millstream.connect.capture.settings import CaptureSettings
from tests.connect.capture.harness import read_topic, wait_until
from tests.peers.servers import free_port

STATE = CaptureState("creating", "1", 1, "shop", "slot", "publication", 5)


@pytest.fixture
def settings(broker: Broker) -> CaptureSettings:
    return CaptureSettings(
        name=f"o{uuid.uuid4().hex[:8]}",
        database="",
        tables=["public.*"],
        broker=broker.bootstrap_servers,
        partitions=2,
    )


@pytest.mark.parametrize("is_silent", [False, True])
def test_unreachable_broker_is_reported_soon(
    settings: CaptureSettings, is_silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing listens there, or nothing answers."""
    assert module.REACH_SECONDS <= 5
    monkeypatch.setattr(module, "REACH_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1] if is_silent else 1
        output = Output(replace(settings, broker=f"127.0.0.1:{port}"))
        for attempt in (lambda: output.open(Owner()), output.exists):
            with pytest.raises(ConnectionError, match=r"gave up after 0\.3 s.* Check `broker`"):
                attempt()
        output.close()


def test_unreachable_advertised_address_is_named(settings: CaptureSettings) -> None:
    port = free_port()
    config = {"advertised.listeners": "PLAINTEXT://127.0.0.1:1"}
    with Broker.start(config=config, port=port):
        output = Output(replace(settings, broker=f"127.0.0.1:{port}"))
        with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:1: .*advertised\.listeners"):
            output.open(Owner())
        output.close()


def write(output: Output, topic: str, *keys: bytes, without: set[bytes] | None = None) -> None:
    buffer = ChangeBuffer()
    for key in keys:
        buffer.append(key, b'{"op":"c"}', 0)
    output.write(topic, take_columns(buffer), without or set())


def test_nothing_is_stored_before_the_first_commit(settings: CaptureSettings) -> None:
    output = Output(settings)
    output.open(Owner())
    assert output.read_position() is None
    assert output.read_state() is None
    output.close()


def test_position_is_committed_with_the_changes(settings: CaptureSettings) -> None:
    topic = f"{settings.name}.t"
    first = Output(settings)
    first.open(Owner())
    write(first, topic, b"1", b"2", b"3", b"4", without={b"2"})
    first.commit(Position(10), STATE)
    write(first, topic, b"5")
    first.flush()
    owner, second = Owner(), Output(settings)
    state = second.open(owner)
    assert second.read_position() == Position(10)
    assert state == replace(STATE, owner=owner.id)
    written = [it.key for part in (0, 1) for it in read_topic(settings.broker, topic, part)]
    assert sorted(written) == [1, 3, 4]
    second.commit(Position(20))
    # The end of a transaction is answered before readers see it.
    wait_until(lambda: second.read_position() == Position(20))
    assert second.read_state() == state
    first.close()
    second.close()


def test_the_last_position_is_found_behind_many_aborted_ones(
    settings: CaptureSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.connect.capture.output.READ_BACK_OFFSETS", 2)
    output = Output(settings)
    output.open(Owner())
    output.commit(Position(10))
    for lsn in range(20, 30):
        output._send_own(0, Position(lsn).encode())
        output.flush()
        output._producer.end(commit=False)
    wait_until(lambda: output.read_position() == Position(10))
    output.close()


def opened(settings: CaptureSettings, owner: Owner) -> Output:
    """An output of an owner that has claimed the capture."""
    output = Output(settings)
    if output.open(owner) is None:
        output.commit_state(replace(STATE, owner=owner.id))
        owner.has_claimed = True
    return output


def test_a_replaced_writer_finds_out(settings: CaptureSettings) -> None:
    older, newer = Owner(), Owner()
    first = opened(settings, older)
    first.commit(Position(10))
    second = opened(settings, newer)
    second.commit(Position(20))
    with pytest.raises(TransactionLost, match="another process took over"):
        first.commit(Position(30))
    again = Output(settings)
    with pytest.raises(
        CaptureFenced, match=f"another process has taken over capture {settings.name}"
    ):
        again.open(older)
    wait_until(lambda: second.read_position() == Position(20))
    second.commit(Position(40))  # it was not fenced by the other's attempt
    for output in (first, second, again):
        output.close()


def test_a_writer_that_is_fenced_by_a_late_claim_of_the_replaced_one_may_go_on(
    settings: CaptureSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older process looks before the newer one has claimed the capture, and begins after."""
    older, newer = Owner(), Owner()
    first, again = opened(settings, older), Output(settings)
    seconds = []

    def begin_late(*arguments: Any) -> Transaction:
        monkeypatch.undo()
        seconds.append(opened(settings, newer))
        return begin_transaction(*arguments)

    monkeypatch.setattr(module, "begin_transaction", begin_late)
    with pytest.raises(CaptureFenced):
        again.open(older)
    with pytest.raises(TransactionLost):
        seconds[0].commit(Position(10))
    seconds.append(opened(settings, newer))
    seconds[1].commit(Position(20))
    wait_until(lambda: again.read_position() == Position(20))
    for output in (first, again, *seconds):
        output.close()


def test_a_writer_whose_transaction_was_aborted_may_go_on(settings: CaptureSettings) -> None:
    owner = Owner()
    first = opened(settings, owner)
    write(first, f"{settings.name}.t", b"1")
    first.flush()
    again = opened(settings, owner)
    again.commit(Position(10))
    wait_until(lambda: again.read_position() == Position(10))
    first.close()
    again.close()


def test_a_writer_that_fenced_itself_may_go_on(settings: CaptureSettings) -> None:
    """A repeated InitProducerId was processed after the answer that the client has used."""
    owner = Owner()
    first = opened(settings, owner)
    write(first, f"{settings.name}.t", b"1")
    begin_transaction(first._cluster, settings.transactional_id, 1000)
    with pytest.raises(TransactionLost):
        first.commit(Position(10))
    again = opened(settings, owner)
    again.commit(Position(20))
    wait_until(lambda: again.read_position() == Position(20))
    assert read_topic(settings.broker, f"{settings.name}.t") == []
    first.close()
    again.close()
