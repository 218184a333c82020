"""ListTransactions: all that are here, and what each filter leaves of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millstream import Broker
from millstream.errors import ErrorCode
from tests.broker.handlers.calls import create_topic
from tests.peers.transactional import TransactionalProducer
from tests.peers.wire import Wire


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    """Three transactional ids: one empty, one with an open transaction, one that committed."""
    with Broker.start() as broker, Wire(broker.bootstrap_servers) as wire:
        create_topic(wire, "t")
        for name in ("empty", "open", "committed"):
            with TransactionalProducer(broker.bootstrap_servers, name, protocol=1) as producer:
                producer.init(900_000)  # the open one stays open
                if name != "empty":
                    producer.add_partitions("t")
                if name == "committed":
                    producer.end(committed=True)
                    producer.end(committed=True)  # held until it is complete
        yield wire


def listed(wire: Wire, version: int = 2, **filters: Any) -> dict[str, str]:
    answer = wire.call("list_transactions", version, **filters)
    assert answer.error_code == 0
    return {it.transactional_id: it.transaction_state for it in answer.transaction_states}


@pytest.mark.parametrize("version", range(3))
def test_all_are_listed_without_a_filter(wire: Wire, version: int) -> None:
    assert listed(wire, version) == {
        "empty": "Empty",
        "open": "Ongoing",
        "committed": "CompleteCommit",
    }


def test_states_are_filtered_by_their_exact_names(wire: Wire) -> None:
    assert listed(wire, state_filters=["Ongoing", "CompleteCommit"]).keys() == {"open", "committed"}
    answer = wire.call("list_transactions", 0, state_filters=["ongoing", "Nonsense"])
    assert answer.unknown_state_filters == ("ongoing", "Nonsense")
    assert answer.transaction_states == ()


def test_producer_ids_are_filtered(wire: Wire) -> None:
    answer = wire.call("list_transactions", 0)
    ids = {it.transactional_id: it.producer_id for it in answer.transaction_states}
    assert listed(wire, producer_id_filters=[ids["open"]]).keys() == {"open"}
    assert listed(wire, producer_id_filters=[987_654]) == {}


def test_short_transactions_are_left_out(wire: Wire) -> None:
    assert "open" not in listed(wire, duration_filter=3_600_000, state_filters=["Ongoing"])
    assert "open" in listed(wire, duration_filter=-1, state_filters=["Ongoing"])


def test_pattern_has_to_match_the_whole_id(wire: Wire) -> None:
    assert listed(wire, transactional_id_pattern=".*m.*").keys() == {"empty", "committed"}
    assert listed(wire, transactional_id_pattern="m") == {}
    assert len(listed(wire, transactional_id_pattern="")) == 3


def test_bad_pattern_is_refused(wire: Wire) -> None:
    answer = wire.call("list_transactions", 2, transactional_id_pattern="(")
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert answer.transaction_states == ()


def test_nothing_is_listed_before_there_is_anything() -> None:
    with Broker.start() as broker, Wire(broker.bootstrap_servers) as wire:
        assert listed(wire) == {}
