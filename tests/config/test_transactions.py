"""The transaction settings that tools ask for."""

from __future__ import annotations

from millstream.config.broker import BROKER_SETTINGS
from tests.config.kafka import kafka_settings


def test_every_transaction_setting_of_kafka_is_known() -> None:
    kafka = {name for name in kafka_settings("broker") if name.startswith("transaction")}
    assert kafka <= set(BROKER_SETTINGS)
