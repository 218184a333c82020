"""How a console is started: which cluster it shows, where it listens, which names it answers to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from millstream.models import dataclass

LISTEN_DEFAULT = "127.0.0.1:8080"


@dataclass(frozen=True)
class ConsoleSettings:
    """`client_settings` are those of a Kafka client (`client.Security`), without bootstrap.servers;
    its repr contains no secrets."""

    bootstrap_servers: str
    client_settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    allowed_hosts: tuple[str, ...] = ()  # names in `Host`, besides localhost and addresses
    tls_certificate: str | None = None  # PEM files; without them, the console speaks HTTP
    tls_key: str | None = None
