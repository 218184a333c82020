"""How a broker connects to others: TLS and SASL of the listener that brokers use.

The user and password are those of the listener's `sasl.jaas.config`, for the mechanism
`sasl.mechanism.inter.broker.protocol`, as in Kafka. The broker's certificate is also what it shows
to others that ask for one.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.broker.security.tls import FileState, client_context, file_state
from millstream.config.sasl import MODULES, jaas_of
from millstream.errors import ConfigError
from millstream.security.login import Login, make_login

if TYPE_CHECKING:
    from millstream.config.broker import BrokerConfig
    from millstream.config.security import SecuritySettings

logger = logging.getLogger("millstream.security")


def broker_login(config: BrokerConfig) -> tuple[str, str] | None:
    """The user and password of brokers; None without SASL, or if none is set."""
    listener = config.inter_broker_listener
    if not config.listener_protocols[listener].uses_sasl:
        return None
    mechanism = config.listener_settings(listener).sasl_mechanism_inter_broker_protocol
    if mechanism not in MODULES:
        return None
    jaas = jaas_of(mechanism, config.listener_settings(listener, mechanism))
    return None if jaas is None else jaas.login


def check_broker_login(config: BrokerConfig) -> None:
    """Raises `ConfigError` if brokers could not log in to each other."""
    listener = config.inter_broker_listener
    if not config.listener_protocols[listener].uses_sasl:
        return
    settings = config.listener_settings(listener)
    mechanism = settings.sasl_mechanism_inter_broker_protocol
    if mechanism not in settings.sasl_enabled_mechanisms or mechanism == "OAUTHBEARER":
        raise ConfigError(
            f"sasl.mechanism.inter.broker.protocol is {mechanism}: brokers log in to each other on "
            f"listener {listener} with PLAIN or SCRAM, which it has to have enabled "
            f"(sasl.enabled.mechanisms: {', '.join(settings.sasl_enabled_mechanisms)})"
        )
    if broker_login(config) is None:
        raise ConfigError(
            f"brokers cannot log in to each other: listener {listener} needs a user. Set "
            f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config="
            f'{MODULES[mechanism]} required username="..." password="...";'
        )


class BrokerSecurity:
    """For connections to other brokers. `current` returns the settings in force."""

    def __init__(self, current: Callable[[], BrokerConfig]) -> None:
        """Raises `ConfigError`."""
        self._current = current
        self._context: ssl.SSLContext | None = None
        self._made_of: tuple[BrokerConfig, FileState] | None = None
        self._lock = threading.Lock()
        self.tls_context()

    def tls_context(self) -> ssl.SSLContext | None:
        """None without TLS. Made again when files or settings have changed; if that fails, the
        last one stays in use. Waits for the disk; may be called in any thread."""
        config = self._current()
        listener = config.inter_broker_listener
        if not config.listener_protocols[listener].uses_tls:
            return None
        with self._lock:
            return self._up_to_date(config, config.listener_settings(listener))

    def _up_to_date(
        self, config: BrokerConfig, settings: SecuritySettings
    ) -> ssl.SSLContext | None:
        made_of = config, file_state(settings)
        if made_of != self._made_of:
            self._made_of = made_of
            try:
                self._context = client_context(settings)
            except ConfigError as error:
                if self._context is None:
                    raise
                logger.error("connections to brokers use the last certificates: %s", error)
        return self._context

    def login(self) -> Login | None:
        """A new one for each connection; None without SASL."""
        config = self._current()
        found = broker_login(config)
        if found is None:
            return None
        settings = config.listener_settings(config.inter_broker_listener)
        username, password = found
        mechanism = settings.sasl_mechanism_inter_broker_protocol
        return make_login(mechanism, username=username, password=password)
