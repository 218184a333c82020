"""How a connection is secured, from the settings that every Kafka client knows.

    security.protocol    PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
    ssl.*                files in PEM, under librdkafka's names (ssl.ca.location, ...)
    sasl.*               mechanism, username and password

TLS is Python's own. SASL is kafka-python's (`kafka.net.sasl`: PLAIN, SCRAM, OAUTHBEARER, GSSAPI,
AWS), whose mechanisms are state machines without sockets; imported only where SASL is asked for.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millstream.errors import ConfigError

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

SETTINGS = (
    "security.protocol",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "sasl.mechanism",
    "sasl.username",
    "sasl.password",
)


@dataclass(frozen=True)
class Security:
    """The settings of one client."""

    protocol: str = "PLAINTEXT"
    ca_location: str | None = None
    certificate_location: str | None = None
    key_location: str | None = None
    key_password: str | None = None
    checks_hostname: bool = True
    mechanism: str | None = None
    username: str | None = None
    password: str | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Security:
        """Raises `ConfigError` for a setting that does not exist or does not fit the others."""
        for name in settings:
            if name not in SETTINGS:
                raise ConfigError(f"{name} is not known here; known are {', '.join(SETTINGS)}")
        security = cls(
            settings.get("security.protocol", "PLAINTEXT").upper(),
            settings.get("ssl.ca.location"),
            settings.get("ssl.certificate.location"),
            settings.get("ssl.key.location"),
            settings.get("ssl.key.password"),
            settings.get("ssl.endpoint.identification.algorithm", "https").lower() == "https",
            settings.get("sasl.mechanism"),
            settings.get("sasl.username"),
            settings.get("sasl.password"),
        )
        if security.protocol not in PROTOCOLS:
            known = ", ".join(PROTOCOLS)
            raise ConfigError(
                f"security.protocol is {security.protocol}; it must be one of {known}"
            )
        if security.uses_sasl and security.mechanism is None:
            raise ConfigError(f"{security.protocol} needs a sasl.mechanism, such as SCRAM-SHA-256")
        return security

    @property
    def uses_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL")

    def tls_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca_location)
        context.check_hostname = self.checks_hostname
        if self.certificate_location is not None:
            context.load_cert_chain(self.certificate_location, self.key_location, self.key_password)
        return context

    def sasl_mechanism(self, host: str) -> Any:
        """A new exchange of credentials: kafka-python's `SaslMechanism`."""
        try:
            from kafka.net.sasl import SASL_MECHANISMS
        except ImportError:
            raise ConfigError("SASL needs kafka-python: pip install 'millstream[sasl]'") from None
        if self.mechanism not in SASL_MECHANISMS:
            known = ", ".join(sorted(SASL_MECHANISMS))
            raise ConfigError(f"sasl.mechanism is {self.mechanism}; it must be one of {known}")
        return SASL_MECHANISMS[self.mechanism](
            host=host,
            security_protocol=self.protocol,
            sasl_mechanism=self.mechanism,
            sasl_plain_username=self.username or "",
            sasl_plain_password=self.password or "",
        )
