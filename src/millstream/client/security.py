"""TLS and SASL for a connection, from the usual Kafka client settings.

    security.protocol    PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
    ssl.*                files in PEM, under librdkafka's names (ssl.ca.location, ...)
    sasl.*               mechanism, username and password

Java's names are accepted where they mean the same: stores of type PEM, and the user and password of
a `sasl.jaas.config`. Java keystores are not supported; the error says what to do instead.

TLS is Python's own. SASL is kafka-python's (`kafka.net.sasl`: PLAIN, SCRAM, OAUTHBEARER, GSSAPI,
AWS), whose mechanisms are state machines without sockets; imported only if SASL is used.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millstream.errors import ConfigError
from millstream.security.jaas import PLAIN_MODULE, SCRAM_MODULE, parse_jaas

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
# Java's names for the same settings, supported for PEM stores.
JAVA_SETTINGS = (
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "sasl.jaas.config",
)
_JAAS_MODULES = (PLAIN_MODULE, SCRAM_MODULE)
_AS_PEM = (
    "convert it to PEM (keytool -exportcert -rfc, or openssl pkcs12) and set {instead}, or keep "
    "Java's name with {kind}=PEM"
)


@dataclass(frozen=True)
class Security:
    """The settings of one client. Its repr contains no secrets."""

    protocol: str = "PLAINTEXT"
    ca_location: str | None = None
    ca_certificates: str | None = field(default=None, repr=False)
    certificate_location: str | None = None
    key_location: str | None = None
    key_password: str | None = field(default=None, repr=False)
    checks_hostname: bool = True
    mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Security:
        """Raises `ConfigError` for a setting that does not exist or does not fit the others."""
        for name in settings:
            if name not in SETTINGS and name not in JAVA_SETTINGS:
                raise ConfigError(f"unknown setting {name}; known settings: {', '.join(SETTINGS)}")
        settings = {**settings, **_translated(settings)}
        security = cls(
            protocol=settings.get("security.protocol", "PLAINTEXT").upper(),
            ca_location=settings.get("ssl.ca.location"),
            ca_certificates=settings.get("ssl.truststore.certificates"),
            certificate_location=settings.get("ssl.certificate.location"),
            key_location=settings.get("ssl.key.location"),
            key_password=settings.get("ssl.key.password"),
            checks_hostname=settings.get("ssl.endpoint.identification.algorithm", "https").lower()
            == "https",
            mechanism=settings.get("sasl.mechanism"),
            username=settings.get("sasl.username"),
            password=settings.get("sasl.password"),
        )
        security._check()
        return security

    def _check(self) -> None:
        if self.protocol not in PROTOCOLS:
            known = ", ".join(PROTOCOLS)
            raise ConfigError(f"security.protocol is {self.protocol}; it must be one of {known}")
        if self.uses_sasl and self.mechanism is None:
            raise ConfigError(f"{self.protocol} needs a sasl.mechanism, such as SCRAM-SHA-256")
        if not self.uses_sasl and self.mechanism is not None:
            raise ConfigError(
                f"sasl.mechanism is {self.mechanism}, but security.protocol is {self.protocol}; "
                "set it to SASL_SSL or SASL_PLAINTEXT"
            )
        if not self.uses_tls and (self.ca_location or self.certificate_location):
            raise ConfigError(
                f"ssl.* is set, but security.protocol is {self.protocol}; set it to SSL or SASL_SSL"
            )

    @property
    def uses_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL")

    def tls_context(self) -> ssl.SSLContext:
        """Raises `ConfigError` for files that are not there, or not PEM."""
        try:
            context = ssl.create_default_context(
                cafile=self.ca_location, cadata=self.ca_certificates
            )
        except OSError as error:
            raise ConfigError(
                f"ssl.ca.location {self.ca_location or '(inline)'}: {error}"
            ) from error
        context.check_hostname = self.checks_hostname
        if self.certificate_location is not None:
            try:
                context.load_cert_chain(
                    self.certificate_location, self.key_location, self.key_password
                )
            except OSError as error:
                raise ConfigError(
                    f"ssl.certificate.location {self.certificate_location}, ssl.key.location "
                    f"{self.key_location}: {error}"
                ) from error
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


def _translated(settings: Mapping[str, str]) -> dict[str, str]:
    """Translate Java's names."""
    found = {}
    trusted = settings.get("ssl.truststore.location")
    if trusted is not None:
        _must_be_pem(settings, "ssl.truststore", "ssl.ca.location")
        found["ssl.ca.location"] = trusted
    if "ssl.truststore.certificates" in settings:
        _must_be_pem(settings, "ssl.truststore", "ssl.ca.location")
    store = settings.get("ssl.keystore.location")
    if store is not None:
        _must_be_pem(settings, "ssl.keystore", "ssl.certificate.location and ssl.key.location")
        found["ssl.certificate.location"] = store
    jaas = settings.get("sasl.jaas.config")
    if jaas is not None:
        found |= _from_jaas(jaas)
    return found


def _must_be_pem(settings: Mapping[str, str], store: str, instead: str) -> None:
    kind = settings.get(f"{store}.type", "JKS")
    if kind.upper() != "PEM":
        how = _AS_PEM.format(instead=instead, kind=f"{store}.type")
        raise ConfigError(f"{store}.location is a {kind} store, which only Java reads; {how}")


def _from_jaas(jaas: str) -> dict[str, str]:
    config = parse_jaas(jaas)
    if config.module not in _JAAS_MODULES:
        raise ConfigError(
            f"sasl.jaas.config uses {config.module}; only {' and '.join(_JAAS_MODULES)} are "
            "supported. Set sasl.username and sasl.password"
        )
    if config.login is None:
        raise ConfigError(
            "sasl.jaas.config has no username and password; set sasl.username and sasl.password"
        )
    username, password = config.login
    return {"sasl.username": username, "sasl.password": password}
