"""InitProducerId: ids that nobody else has, also after a restart; epochs of transactional ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream import Broker
from millstream.errors import ErrorCode
from millstream.testing.pytest_plugin import SharedBroker
from tests.broker.handlers.transaction_calls import new_producer
from tests.peers.servers import free_port
from tests.peers.wire import Wire


def ask(wire: Wire, version: int = 4, transactional_id: str | None = None, **fields: object) -> Any:
    fields = {"transaction_timeout": 1000} | fields
    return wire.call("init_producer_id", version, transactional_id=transactional_id, **fields)


@pytest.mark.parametrize("version", range(6))
def test_every_request_gets_an_id_of_its_own(millstream: SharedBroker, version: int) -> None:
    with Wire(millstream.bootstrap_servers) as wire:
        answers = [ask(wire, version) for _ in range(3)]
    assert {(it.error_code, it.producer_epoch) for it in answers} == {(0, 0)}
    assert len({it.producer_id for it in answers}) == 3


def test_ids_are_not_given_again_after_a_crash(tmp_path: Path) -> None:
    with Broker.start(tmp_path, port=free_port(), in_process=False) as broker:
        with Wire(broker.bootstrap_servers) as wire:
            first = ask(wire).producer_id
        broker.kill()
        broker.restart()
        with Wire(broker.bootstrap_servers) as wire:
            assert ask(wire).producer_id > first


@pytest.mark.parametrize("version", range(6))
def test_transactional_id_keeps_its_producer_id_and_raises_the_epoch(
    millstream: SharedBroker, version: int
) -> None:
    with new_producer(millstream) as producer:
        answer = ask(producer.wire, version, producer.transactional_id)
        assert (answer.error_code, answer.producer_id) == (0, producer.producer_id)
        assert answer.producer_epoch == 1


def test_producer_that_says_who_it_was_is_fenced_when_it_was_replaced(
    millstream: SharedBroker,
) -> None:
    with new_producer(millstream) as producer:
        was = {"producer_id": producer.producer_id, "producer_epoch": 0}
        ask(producer.wire, 4, producer.transactional_id)
        for version, code in (
            (3, ErrorCode.INVALID_PRODUCER_EPOCH),
            (4, ErrorCode.PRODUCER_FENCED),
        ):
            answer = ask(producer.wire, version, producer.transactional_id, **was)
            assert answer.error_code == code
            assert (answer.producer_id, answer.producer_epoch) == (-1, -1)


@pytest.mark.parametrize(
    "half", [{"producer_id": 5, "producer_epoch": -1}, {"producer_id": -1, "producer_epoch": 5}]
)
def test_producer_that_says_half_of_who_it_was_is_refused(
    millstream: SharedBroker, half: dict[str, object]
) -> None:
    with Wire(millstream.bootstrap_servers) as wire:
        assert ask(wire, transactional_id=None, **half).error_code == ErrorCode.INVALID_REQUEST


def test_empty_transactional_id_is_refused(millstream: SharedBroker) -> None:
    with Wire(millstream.bootstrap_servers) as wire:
        assert ask(wire, transactional_id="").error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("timeout_ms", [0, 900_001])
def test_time_out_beyond_the_bounds_is_refused(millstream: SharedBroker, timeout_ms: int) -> None:
    with new_producer(millstream) as producer:
        answer = ask(producer.wire, 4, producer.transactional_id, transaction_timeout=timeout_ms)
        assert answer.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_transactional_id_before_anybody_asked_for_a_coordinator_is_refused() -> None:
    with Broker.start() as broker, Wire(broker.bootstrap_servers) as wire:
        assert ask(wire, transactional_id="tx").error_code == ErrorCode.NOT_COORDINATOR
