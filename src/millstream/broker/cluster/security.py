"""How a broker proves to ZooKeeper who it is, and who may read and change the cluster's nodes.

With `zookeeper.set.acl` every node belongs to the identity that created it: the SASL user, or the
name in the TLS certificate, which is therefore the same for all brokers. Others may read what Kafka
lets them read (who is a member, who is the controller), and nothing of the metadata, which contains
credentials.
"""

from __future__ import annotations

import enum
import re
import ssl
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from millstream.config.security import SecuritySettings
from millstream.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.config.cluster import ClusterSettings

MakeContext: TypeAlias = "Callable[[SecuritySettings], ssl.SSLContext]"
"""A context for connections to servers. Raises `ConfigError`."""

METADATA = "/millstream"
SASL_SETTING = "millstream.zookeeper.sasl.jaas.config"
DIGEST_MODULE = "DigestLoginModule"


class Access(enum.Enum):
    """Who may do what with a node."""

    OPEN = "everyone may do everything"
    READABLE = "its owner may do everything, others read it"
    PRIVATE = "its owner alone may do anything"


@dataclass(frozen=True)
class ZooKeeperSecurity:
    """Nothing by default: ZooKeeper knows nobody, and everyone may do everything."""

    tls: Callable[[], ssl.SSLContext] | None = None  # for each connection: files may have changed
    login: tuple[str, str] | None = field(default=None, repr=False)  # user and password
    sets_acls: bool = False

    def access(self, path: str) -> Access:
        """Of a node that is created, by its path below the chroot."""
        if not self.sets_acls:
            return Access.OPEN
        return Access.PRIVATE if path.startswith(METADATA) else Access.READABLE


def security_of(config: ClusterSettings, make_context: MakeContext) -> ZooKeeperSecurity:
    """Raises `ConfigError` for settings that cannot work."""
    tls = (
        partial(_tls_context, config, make_context) if config.zookeeper_ssl_client_enable else None
    )
    if tls is not None:
        tls()
    has_certificate = tls is not None and config.zookeeper_ssl_keystore_location is not None
    login = _login(config.millstream_zookeeper_sasl_jaas_config)
    if config.zookeeper_set_acl and login is None and not has_certificate:
        raise ConfigError(
            "zookeeper.set.acl needs an identity that the nodes can belong to: set "
            f"{SASL_SETTING}, or zookeeper.ssl.client.enable=true and "
            "zookeeper.ssl.keystore.location"
        )
    return ZooKeeperSecurity(tls, login, config.zookeeper_set_acl)


def _login(jaas: str | None) -> tuple[str, str] | None:
    if jaas is None:
        return None
    from millstream.security.jaas import parse_jaas

    try:
        module = parse_jaas(jaas)
    except ConfigError as error:
        raise ConfigError(str(error).replace("sasl.jaas.config", SASL_SETTING)) from None
    if module.module != DIGEST_MODULE or module.login is None:
        raise ConfigError(
            f"{SASL_SETTING}: write it as org.apache.zookeeper.server.auth.{DIGEST_MODULE} "
            'required username="..." password="..."; (brokers log in with DIGEST-MD5 only)'
        )
    return module.login


def _tls_context(config: ClusterSettings, make_context: MakeContext) -> ssl.SSLContext:
    settings = SecuritySettings(
        ssl_keystore_location=config.zookeeper_ssl_keystore_location,
        ssl_keystore_type=config.zookeeper_ssl_keystore_type,
        ssl_key_password=config.zookeeper_ssl_keystore_password,
        ssl_truststore_location=config.zookeeper_ssl_truststore_location,
        ssl_truststore_type=config.zookeeper_ssl_truststore_type,
        ssl_enabled_protocols=config.zookeeper_ssl_enabled_protocols,
        ssl_cipher_suites=config.zookeeper_ssl_cipher_suites,
        ssl_endpoint_identification_algorithm=(
            config.zookeeper_ssl_endpoint_identification_algorithm.lower()
        ),
    )
    try:
        return make_context(settings)
    except ConfigError as error:
        named = str(error).replace("ssl.key.password", "ssl.keystore.password")
        raise ConfigError(re.sub(r"(?<![\w./-])ssl\.", "zookeeper.ssl.", named)) from None
