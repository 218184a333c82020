"""The addresses of workers: each has its own, and all share those that clients start with.

    listeners=PLAINTEXT://0.0.0.0:9092, 2 workers

        0.0.0.0:9092    shared: any worker accepts a connection, and tells the client the others
        0.0.0.0:9093    worker 1
        0.0.0.0:9094    worker 2

Advertised ports count in the same way. Port 0 is any free port, for all of them. Metrics have no
shared address: worker 1 serves its own at the configured port, worker 2 at the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from millstream.config.broker import BrokerConfig, Endpoint
from millstream.errors import ConfigError

PORT_MAX = 65_535


class WorkerAddresses(NamedTuple):
    listeners: tuple[Endpoint, ...]
    advertised: tuple[Endpoint, ...]

    def settings(self) -> dict[str, str]:
        return {
            "listeners": ",".join(map(_text, self.listeners)),
            "advertised.listeners": ",".join(map(_text, self.advertised)),
        }


def check_ports(config: BrokerConfig, workers: int) -> None:
    """Raise `ConfigError` if there are fewer ports than workers."""
    taken: dict[int, str] = {}
    for endpoint in config.endpoints:
        if endpoint.port == 0:
            continue
        ports = range(endpoint.port, endpoint.port + workers + 1)
        if ports[-1] > PORT_MAX:
            raise ConfigError(
                f"listener {endpoint.listener}: {workers} workers need the ports {ports[0]} to "
                f"{ports[-1]}, but {PORT_MAX} is the last; use a lower port"
            )
        for port in ports:
            other = taken.setdefault(port, endpoint.listener)
            if other != endpoint.listener:
                raise ConfigError(
                    f"listeners {other} and {endpoint.listener} both need port {port}: {workers} "
                    f"workers take {workers + 1} ports of each; move them apart"
                )
    _check_metrics_ports(config, workers, taken)
    for advertised in config.advertised_endpoints.values():
        if advertised.port + workers > PORT_MAX:
            raise ConfigError(
                f"advertised.listeners, {advertised.listener}: {workers} workers need the ports "
                f"{advertised.port} to {advertised.port + workers}, but {PORT_MAX} is the last"
            )


def _check_metrics_ports(config: BrokerConfig, workers: int, taken: Mapping[int, str]) -> None:
    address = config.metrics_address
    if address is None or not address[1]:
        return
    ports = range(address[1], address[1] + workers)
    if ports[-1] > PORT_MAX:
        raise ConfigError(
            f"millstream.metrics.listener: {workers} workers need the ports {ports[0]} to "
            f"{ports[-1]}, but {PORT_MAX} is the last; use a lower port"
        )
    for port in ports:
        if port in taken:
            raise ConfigError(
                f"millstream.metrics.listener and listener {taken[port]} both need port {port}: "
                f"{workers} workers take {workers} ports for metrics; move them apart"
            )


def metrics_address(config: BrokerConfig, worker: int) -> dict[str, str]:
    """The setting for the metrics of a worker: the first one has the port that is configured."""
    address = config.metrics_address
    if address is None:
        return {}
    host, port = address
    shown = f"[{host}]" if ":" in host else host
    return {"millstream.metrics.listener": f"{shown}:{port + worker - 1 if port else 0}"}


def worker_addresses(
    config: BrokerConfig, worker: int, bound: Mapping[str, int] | None = None
) -> WorkerAddresses:
    """Those of one worker. `bound` are the ports that it had by listener, if any were free."""
    known = bound or {}
    listeners = tuple(
        endpoint._replace(port=_port(endpoint.port, worker) or known.get(endpoint.listener, 0))
        for endpoint in config.endpoints
    )
    # An advertised port that was not set is that of the listener, which counts already.
    advertised = tuple(
        it._replace(port=_port(it.port, worker)) for it in config.advertised_endpoints.values()
    )
    return WorkerAddresses(listeners, advertised)


def _port(first: int, worker: int) -> int:
    return first + worker if first else 0


def _text(endpoint: Endpoint) -> str:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{endpoint.listener}://{host}:{endpoint.port}"
