"""InitProducerId: ids that nobody else has, also after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream import Broker
from millstream.errors import ErrorCode
from millstream.testing.pytest_plugin import SharedBroker
from tests.peers.wire import Wire


def ask(wire: Wire, version: int = 4, transactional_id: str | None = None) -> Any:
    return wire.call(
        "init_producer_id", version, transactional_id=transactional_id, transaction_timeout=1000
    )


@pytest.mark.parametrize("version", range(6))
def test_every_request_gets_an_id_of_its_own(millstream: SharedBroker, version: int) -> None:
    with Wire(millstream.bootstrap_servers) as wire:
        answers = [ask(wire, version) for _ in range(3)]
    assert {(it.error_code, it.producer_epoch) for it in answers} == {(0, 0)}
    assert len({it.producer_id for it in answers}) == 3


def test_ids_are_not_given_again_after_a_crash(tmp_path: Path) -> None:
    with Broker.start(tmp_path, in_process=False) as broker:
        with Wire(broker.bootstrap_servers) as wire:
            first = ask(wire).producer_id
        broker.kill()
        broker.restart()
        with Wire(broker.bootstrap_servers) as wire:
            assert ask(wire).producer_id > first


def test_transactional_id_is_refused_for_good(millstream: SharedBroker) -> None:
    with Wire(millstream.bootstrap_servers) as wire:
        answer = ask(wire, transactional_id="tx")
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert not ErrorCode.UNSUPPORTED_VERSION.retriable
        assert ask(wire, transactional_id="").error_code == ErrorCode.INVALID_REQUEST
