"""The listeners of a broker: bound, started and closed together; their files are watched.

A listener that anybody can reach and that asks nobody who they are is opened with a loud warning.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream.broker.network.listener import Listener
from millstream.coordination.cluster_records import BrokerEndpoint
from millstream.errors import MillstreamError
from millstream.security.networks import is_loopback

if TYPE_CHECKING:
    from millstream.broker.network.connections import Connections
    from millstream.broker.security.listeners import ListenerSecurity
    from millstream.config.broker import BrokerConfig, Endpoint

logger = logging.getLogger("millstream.server")

FILES_CHECKED_SECONDS = 5.0
KEYS_WAITED_SECONDS = 10.0  # at the start
_EVERY_INTERFACE = ("", "0.0.0.0", "::")


class Listeners:
    """See the module. `bind`, then `prepare`, `start`, and `close`."""

    def __init__(self, connections: Connections, shared: Sequence[Endpoint] = ()) -> None:
        """`shared` are not advertised, and other processes listen there too."""
        self._connections = connections
        self._services = connections.services
        self._shared = shared
        self._listeners: list[Listener] = []
        self._own: list[Listener] = []
        self.security: ListenerSecurity | None = None  # if one of them has TLS or SASL
        self._watch: asyncio.Task[None] | None = None

    @property
    def ports(self) -> dict[str, int]:
        """The port of each listener that is this broker's own."""
        return {it.endpoint.listener: it.port for it in self._own}

    @property
    def has_tls(self) -> bool:
        return self.security is not None and bool(self.security.tls)

    async def bind(self) -> list[BrokerEndpoint]:
        """Open the listeners without accepting; returns the advertised addresses. Raises
        `MillstreamError`."""
        config = self._services.config
        self._secure(config)
        advertised = config.advertised_endpoints
        endpoints = []
        for endpoint in config.endpoints:
            listener = await self._listen(endpoint)
            self._own.append(listener)
            told = advertised[endpoint.listener]
            endpoints.append(
                BrokerEndpoint(
                    endpoint.listener,
                    # If it listens on every interface.
                    socket.getfqdn() if told.host in _EVERY_INTERFACE else told.host,
                    told.port or listener.port,
                    config.listener_protocols[endpoint.listener],
                )
            )
        for endpoint in self._shared:
            await self._listen(endpoint, is_shared=True)
        return endpoints

    def _secure(self, config: BrokerConfig) -> None:
        """Imported only with TLS or SASL."""
        protocols = [config.listener_protocols[it.listener] for it in config.endpoints]
        if not any(it.uses_tls or it.uses_sasl for it in protocols):
            return
        from millstream.broker.security.listeners import ListenerSecurity

        services = self._services
        self.security = ListenerSecurity(
            config, services.metadata, services.clock, cluster_id=services.cluster_id
        )
        self._connections.authenticator = self.security.authenticator
        services.configs.checks.append(self.security.check)
        services.configs.subscribe(self._settings_changed)

    async def _listen(self, endpoint: Endpoint, *, is_shared: bool = False) -> Listener:
        tls = None if self.security is None else self.security.tls.get(endpoint.listener)
        protocol = self._services.config.listener_protocols[endpoint.listener]
        assert protocol.uses_tls == (tls is not None), "a listener must be as safe as it says"
        listener = Listener(self._connections, endpoint, tls=tls, is_shared=is_shared)
        self._listeners.append(listener)
        await listener.bind()
        return listener

    async def prepare(self) -> None:
        """Wait for what clients need to log in: they give up when they are refused."""
        if self._connections.authenticator is not None and self.security is not None:
            await self._services.tasks.run_blocking(
                self.security.wait_for_keys, KEYS_WAITED_SECONDS
            )

    def start(self) -> None:
        """Accept connections. Raises `MillstreamError`."""
        for listener in self._listeners:
            listener.start()
        if not self._shared or self._services.broker_id == 1:  # one of several workers is enough
            for warning in open_to_all(self._services.config):
                logger.warning("%s", warning)
        if self.has_tls:
            self._watch = self._connections.loop.create_task(self._watch_files())

    def close(self) -> None:
        """Accept no more; connections stay open."""
        for listener in self._listeners:
            listener.close()
        if self._watch is not None:
            self._watch.cancel()
        if self.security is not None:
            self.security.close()

    # Changes

    def _settings_changed(self, before: BrokerConfig, now: BrokerConfig) -> None:
        assert self.security is not None
        try:
            self.security.configure(now)
        except MillstreamError as error:
            logger.error("the new settings of listeners cannot be used: %s", error)
        except Exception:  # other subscribers must get the settings too
            logger.exception("the new settings of listeners cannot be used")

    def reload(self) -> None:
        """Read the files of certificates again, whether they have changed or not."""
        if self.security is not None:
            self._services.tasks.start(self._refresh(is_forced=True))

    async def _watch_files(self) -> None:
        while True:
            await asyncio.sleep(FILES_CHECKED_SECONDS)
            try:
                await self._refresh(is_forced=False)
            except Exception:  # later certificates must be noticed too
                logger.exception("cannot look whether certificates have changed")

    async def _refresh(self, *, is_forced: bool) -> None:
        assert self.security is not None
        await self._services.tasks.run_blocking(self.security.refresh, is_forced=is_forced)


def open_to_all(config: BrokerConfig) -> list[str]:
    """Warnings about listeners that others can reach and that do not protect themselves."""
    warnings = []
    for endpoint in config.endpoints:
        if is_loopback(endpoint.host):
            continue
        name, protocol = endpoint.listener, config.listener_protocols[endpoint.listener]
        settings = config.listener_settings(name)
        where = f"listener {name} at {endpoint.host or '*'}:{endpoint.port}"
        has_certificates = protocol.uses_tls and settings.ssl_client_auth == "required"
        if not protocol.uses_sasl and not has_certificates:
            what = "clients need no certificate" if protocol.uses_tls else protocol.name
            warnings.append(
                f"{where} is OPEN TO EVERYONE who can reach it ({what}): anybody can read, write "
                "and delete everything that access control does not deny to User:ANONYMOUS. Listen "
                "on 127.0.0.1, or use SASL_SSL: docs/guides/security.md shows how"
            )
        elif not protocol.uses_tls:
            warnings.append(
                f"{where} is not encrypted ({protocol.name}): others on the network can read "
                "everything, passwords of PLAIN too. Use SASL_SSL"
            )
    return warnings
