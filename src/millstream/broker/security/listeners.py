"""TLS and SASL of a broker's listeners, as the settings in force now say.

Changed files are noticed by `refresh`, changed settings by `configure`. Settings that cannot be
used are refused when they are altered (`check`); files that cannot be used leave what was there.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from millstream.broker.security.authentication import Authenticator
from millstream.broker.security.mechanisms import Mechanisms
from millstream.broker.security.tls import TlsListener

if TYPE_CHECKING:
    from millstream.broker.metadata.store import MetadataLog
    from millstream.clock import Clock
    from millstream.config.broker import BrokerConfig
    from millstream.config.security import SecuritySettings


class ListenerSecurity:
    """See the module. Raises `ConfigError` for what cannot be used."""

    def __init__(
        self, config: BrokerConfig, metadata: MetadataLog, clock: Clock, *, cluster_id: str
    ) -> None:
        self._config = config
        # A refresh in a thread must not end after `configure` with what was set before.
        self._lock = threading.Lock()
        self._mechanisms: Mechanisms | None = None
        self.authenticator: Authenticator | None = None
        self.tls: dict[str, TlsListener] = {}
        names = [it.listener for it in config.endpoints]
        for name in names:
            if config.listener_protocols[name].uses_tls:
                self.tls[name] = TlsListener(name, config.listener_settings(name))
        if any(config.listener_protocols[name].uses_sasl for name in names):
            self._mechanisms = Mechanisms(config, metadata, clock, cluster_id=cluster_id)
            self.authenticator = Authenticator(self._mechanisms, self._session_ms)

    def _session_ms(self, listener: str, mechanism: str) -> int:
        return self._config.listener_settings(listener, mechanism).connections_max_reauth_ms

    def check(self, config: BrokerConfig) -> None:
        """Raises `ConfigError` if listeners could not use these settings."""
        for name in self.tls:
            if self._has_changed(config, name):
                TlsListener(name, config.listener_settings(name))

    def configure(self, config: BrokerConfig) -> None:
        """Use these settings for new connections."""
        with self._lock:
            changed = [name for name in self.tls if self._has_changed(config, name)]
            self._config = config
            for name in changed:
                self.tls[name].refresh(config.listener_settings(name), is_forced=True)
        if self._mechanisms is not None:
            self._mechanisms.configure(config)

    def refresh(self, *, is_forced: bool = False) -> None:
        """Use the files for new connections if they have changed. Waits for the disk."""
        for name, tls in self.tls.items():
            with self._lock:
                tls.refresh(self._config.listener_settings(name), is_forced=is_forced)

    def wait_for_keys(self, seconds: float) -> None:
        """Those of OAUTHBEARER."""
        if self._mechanisms is not None:
            self._mechanisms.wait_for_keys(seconds)

    def close(self) -> None:
        if self._mechanisms is not None:
            self._mechanisms.close()

    def _has_changed(self, config: BrokerConfig, listener: str) -> bool:
        return _values(config.listener_settings(listener)) != _values(
            self._config.listener_settings(listener)
        )


def _values(settings: SecuritySettings) -> dict[str, object]:
    return {name: value for name, value in vars(settings).items() if name.startswith("ssl_")}
