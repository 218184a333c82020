"""The console beside a broker: `millstream serve --console`.

It runs in a thread of the broker's process, with its own event loop, as a Kafka client of a
listener. Its modules are imported and its address is bound before the broker starts, so that what
is wrong stops the start.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from millstream.cli.failures import CommandFailed
from millstream.client.schema_registry import registry_settings
from millstream.client.security import read_connection
from millstream.client.settings import read_client_settings
from millstream.config.broker import BrokerConfig
from millstream.console.settings import ConsoleSettings
from millstream.errors import ConfigError, MillstreamError
from millstream.security.networks import is_loopback
from millstream.security.protocol import SecurityProtocol

SWITCH_SECONDS = 0.0005  # 5 ms otherwise
_log = logging.getLogger(__name__)


class ConsoleBeside:
    """A console that starts when the broker serves."""

    def __init__(
        self,
        listen: str,
        client_config: Path | None,
        *,
        allowed_hosts: tuple[str, ...] = (),
        tls_certificate: Path | None = None,
        tls_key: Path | None = None,
    ) -> None:
        """Raises `CommandFailed`, or `ConfigError`."""
        try:
            from millstream.console.server import ConsoleServer, bind, tls_context
        except ModuleNotFoundError as missing:
            raise needs_extra(missing) from None
        self._make = ConsoleServer
        self._entrance = ConsoleSettings(
            bootstrap_servers="",
            allowed_hosts=allowed_hosts,
            tls_certificate=str(tls_certificate) if tls_certificate else None,
            tls_key=str(tls_key) if tls_key else None,
        )
        tls_context(self._entrance)  # what is wrong stops the start
        self._client_config = client_config
        if client_config is not None:
            read_connection(client_config)
        self._socket = bind(listen)
        self._is_reachable = not is_loopback(self._socket.getsockname()[0])
        self._server: ConsoleServer | None = None
        self._stopped = False

    def start(self, config: BrokerConfig, addresses: Mapping[str, str]) -> None:
        """In a thread; does not wait for it. `addresses` are those of the broker's listeners."""
        thread = threading.Thread(
            target=self._run, args=(config, addresses), name="console-start", daemon=True
        )
        thread.start()

    def _run(self, config: BrokerConfig, addresses: Mapping[str, str]) -> None:
        from millstream.console.memory import give_back, share_arenas

        try:
            connection = connection_to(
                config, addresses, self._client_config, is_reachable=self._is_reachable
            )
            settings = replace(
                self._entrance,
                bootstrap_servers=connection.bootstrap_servers,
                client_settings=connection.client_settings,
            )
            # The broker's loop, in another thread, gets its turn sooner while a page is rendered.
            sys.setswitchinterval(SWITCH_SECONDS)
            share_arenas()
            server = self._make(settings, self._socket)
            server.start()
            give_back()
        except (MillstreamError, OSError) as error:
            _log.error("the console did not start: %s", error)
            self._socket.close()  # browsers are refused, instead of waiting
            return
        self._server = server
        if self._stopped:
            server.stop()
            return
        for risk in server.warnings:
            _log.warning(risk)
        print(f"console at {server.entrance}", flush=True)

    def stop(self) -> None:
        self._stopped = True
        if self._server is not None:
            self._server.stop()


def connection_to(
    config: BrokerConfig,
    addresses: Mapping[str, str],
    client_config: Path | None,
    *,
    is_reachable: bool = False,
) -> ConsoleSettings:
    """How the console reaches the broker beside it; `is_reachable` says whether browsers on other
    machines reach the console. Raises `ConfigError`."""
    if client_config is not None:
        given, servers = read_connection(client_config)
        given |= registry_settings(read_client_settings(client_config))
        protocol = given.get("security.protocol", "PLAINTEXT").upper()
        found = [name for name, it in _protocols(config, addresses).items() if it.name == protocol]
        if servers is None and not found:
            raise ConfigError(f"no listener has security.protocol {protocol} of {client_config}")
        return ConsoleSettings(servers or reachable(addresses[found[0]]), given)
    listener, protocol_of = chosen_listener(
        _protocols(config, addresses), needs_log_in=config.has_authorizer or is_reachable
    )
    return ConsoleSettings(
        reachable(addresses[listener]), client_settings(config, listener, protocol_of)
    )


def chosen_listener(
    protocols: Mapping[str, SecurityProtocol], *, needs_log_in: bool
) -> tuple[str, SecurityProtocol]:
    """One that needs the least. With access control, and for a console that others reach, one where
    users log in, if there is any: else the console would open to all what that listener guards."""
    order = [
        SecurityProtocol.PLAINTEXT,
        SecurityProtocol.SASL_PLAINTEXT,
        SecurityProtocol.SASL_SSL,
        SecurityProtocol.SSL,
    ]
    if needs_log_in:
        order.sort(key=lambda it: not it.uses_sasl)
    return min(protocols.items(), key=lambda it: order.index(it[1]))


def client_settings(
    config: BrokerConfig, listener: str, protocol: SecurityProtocol
) -> dict[str, str]:
    settings = {"security.protocol": protocol.name}
    if not protocol.uses_tls:
        return settings
    tls = config.listener_settings(listener)
    if tls.ssl_truststore_location:
        settings["ssl.ca.location"] = tls.ssl_truststore_location
    elif tls.ssl_truststore_certificates:
        settings["ssl.ca.pem"] = tls.ssl_truststore_certificates
    if not protocol.uses_sasl and tls.ssl_client_auth == "required":
        raise ConfigError(
            f"the console needs a certificate for listener {listener}: give "
            "--console-client-config FILE, with ssl.certificate.location and ssl.key.location"
        )
    return settings


def _protocols(config: BrokerConfig, addresses: Mapping[str, str]) -> dict[str, SecurityProtocol]:
    return {name: config.listener_protocols[name] for name in addresses}


def reachable(address: str) -> str:
    """The address of a listener on all interfaces is no address to connect to."""
    host, _, port = address.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("", "0.0.0.0") else address


def needs_extra(missing: ModuleNotFoundError) -> CommandFailed:
    return CommandFailed(
        f"the console needs {missing.name}: install it with pip install 'millstream[console]'"
    )
