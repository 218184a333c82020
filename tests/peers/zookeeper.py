"""ZooKeeper for the tests: a standalone server, or an ensemble of three, on the loopback.

Ticks are short, so that the sessions of killed brokers can end soon. A session may nevertheless be
long, so that those of living brokers do not end on a busy machine, and the standalone server does
not wait for the disk, which may take seconds then: no test cuts its power. An ensemble elects its
leader in ticks, too.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from millstream.errors import ConfigError
from millstream.testing.zookeeper import NETTY, ZooKeeperProcess, server_jars
from tests.peers.cache import PeerMissing
from tests.peers.java_runtime import java_command
from tests.peers.secured import Certificates
from tests.peers.servers import free_port

SHORT_TICK_MS = 100
SHORTEST_SESSION_MS, LONGEST_SESSION_MS = 1_000, 60_000
ENSEMBLE_TICK_MS = 500
STANDALONE_SETTINGS = {
    "minSessionTimeout": SHORTEST_SESSION_MS,
    "maxSessionTimeout": LONGEST_SESSION_MS,
    "forceSync": "no",
}
AUTHENTICATION = "org.apache.zookeeper.server.auth"
# With characters that JAAS and DIGEST-MD5 care about.
BROKERS_USER = ("brokers", "b\u00e9's, pass=w%rd")
OTHER_USER = ("other", "other's")


@contextlib.contextmanager
def running_zookeeper(tick_ms: int = SHORT_TICK_MS) -> Iterator[ZooKeeperProcess]:
    """A new standalone server; raises `PeerMissing` where there is none."""
    with _directory() as directory:
        server = ZooKeeperProcess(
            directory, free_port(), tick_ms=tick_ms, settings=STANDALONE_SETTINGS
        )
        try:
            server.start()
            yield server
        finally:
            server.kill()


class SecuredZooKeeper(ZooKeeperProcess):
    """Speaks TLS at its other port, and knows brokers by SASL or by their certificates."""

    def __init__(self, directory: Path) -> None:
        self.certificates = Certificates(directory / "certificates")
        self.secure_port = free_port()
        settings = {
            "serverCnxnFactory": NETTY,
            "secureClientPort": self.secure_port,
            "secureClientPortAddress": "127.0.0.1",
            "ssl.keyStore.location": self.certificates.sign("zookeeper"),
            "ssl.trustStore.location": self.certificates.authority,
            "ssl.clientAuth": "want",
            "authProvider.sasl": f"{AUTHENTICATION}.SASLAuthenticationProvider",
            "authProvider.x509": f"{AUTHENTICATION}.X509AuthenticationProvider",
        }
        jaas = directory / "jaas.conf"
        users = f'user_{BROKERS_USER[0]}="{BROKERS_USER[1]}" user_{OTHER_USER[0]}="{OTHER_USER[1]}"'
        jaas.write_text(f"Server {{ {AUTHENTICATION}.DigestLoginModule required {users}; }};\n")
        super().__init__(
            *(directory / "server", free_port()),
            tick_ms=SHORT_TICK_MS,
            settings=STANDALONE_SETTINGS | settings,
            java_options=[f"-Djava.security.auth.login.config={jaas}", "-Dfile.encoding=UTF-8"],
        )

    @property
    def secure_address(self) -> str:
        return f"127.0.0.1:{self.secure_port}"


@contextlib.contextmanager
def running_secured_zookeeper() -> Iterator[SecuredZooKeeper]:
    """Raises `PeerMissing` where there is none."""
    with _directory() as directory:
        server = SecuredZooKeeper(directory)
        try:
            server.start()
            yield server
        finally:
            server.kill()


@contextlib.contextmanager
def running_ensemble(tick_ms: int = ENSEMBLE_TICK_MS) -> Iterator[list[ZooKeeperProcess]]:
    """Three servers that have elected a leader; raises `PeerMissing` where there is none."""
    addresses = [f"127.0.0.1:{free_port()}:{free_port()}" for _ in range(3)]
    with _directory() as directory:
        servers = [
            ZooKeeperProcess(
                *(directory / str(number), free_port()),
                tick_ms=tick_ms,
                ensemble=addresses,
                number=number,
            )
            for number in (1, 2, 3)
        ]
        try:
            for server in servers:
                server.launch()
            for server in servers:
                server.wait_until_serving()
            yield servers
        finally:
            for server in servers:
                server.kill()


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    java_command()
    try:
        server_jars()
    except ConfigError as missing:
        raise PeerMissing(str(missing)) from missing
    directory = Path(tempfile.mkdtemp(prefix="millstream-zookeeper-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
