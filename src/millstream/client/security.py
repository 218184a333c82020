"""TLS and SASL for a connection, from the usual Kafka client settings.

    security.protocol    PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
    ssl.*                certificates and keys in PEM, as files or inline
    sasl.*               PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER

The names are librdkafka's. Java's are accepted where they mean the same: stores of type PEM, the
user and password of a `sasl.jaas.config`. So one file serves all clients; `Security` says the same
in librdkafka's names (`librdkafka`) and in Java's (`java`). Java keystores are not supported; the
error says what to do instead.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from millstream.client.settings import BOOTSTRAP_SERVERS, read_client_settings
from millstream.client.token_source import URL_NAME, TokenSource
from millstream.errors import ConfigError
from millstream.security.exchange import OAUTHBEARER, PLAIN
from millstream.security.jaas import (
    OAUTHBEARER_MODULE,
    PLAIN_MODULE,
    SCRAM_MODULE,
    parse_jaas,
)
from millstream.security.login import MECHANISMS, Login, make_login
from millstream.security.pem import how_to_convert, private_file

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

SETTINGS = (
    "security.protocol",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.key.location",
    "ssl.key.pem",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
    "sasl.mechanism",
    "sasl.username",
    "sasl.password",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.extensions",
    "https.ca.location",
)
# Other names for the same. librdkafka has `mechanisms` too; the rest is Java's.
_SAME = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.location": "ssl.certificate.location",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}
# What has no effect here: both sides agree on the newest TLS, and tokens are fetched by us.
_WITHOUT_EFFECT = (
    "ssl.protocol",
    "ssl.enabled.protocols",
    "sasl.oauthbearer.method",
    "sasl.login.callback.handler.class",
)
JAVA_SETTINGS = (
    *_SAME,
    *_WITHOUT_EFFECT,
    "ssl.truststore.type",
    "ssl.keystore.type",
    "sasl.jaas.config",
)
KNOWN = (*SETTINGS, *JAVA_SETTINGS)
_INSTEAD = {
    "ssl.truststore.password": "ssl.truststore.type=PEM, which needs no password",
    "ssl.keystore.password": "ssl.keystore.type=PEM and ssl.key.password",
    "sasl.kerberos.service.name": "another mechanism: Kerberos is not supported",
}
_PREFIXES = ("security.", "ssl.", "sasl.", "https.")
_JAAS_MECHANISMS = {
    PLAIN_MODULE: "sasl.username and sasl.password",
    SCRAM_MODULE: "sasl.username and sasl.password",
    OAUTHBEARER_MODULE: "sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret",
}
_JAVA_MODULES = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class Security:
    """The settings of one client. Its repr contains no secrets."""

    protocol: str = "PLAINTEXT"
    ca_location: str | None = None
    ca_certificates: str | None = field(default=None, repr=False)
    certificate_location: str | None = None
    certificate: str | None = field(default=None, repr=False)
    key_location: str | None = None
    key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    checks_hostname: bool = True
    checks_certificate: bool = True
    mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tokens: TokenSource | None = None
    extensions: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Security:
        """Raises `ConfigError` for a setting that does not exist or does not fit the others."""
        settings = standard_names(settings)
        get = settings.get
        security = cls(
            protocol=get("security.protocol", "PLAINTEXT").upper(),
            ca_location=get("ssl.ca.location"),
            ca_certificates=_pem(get("ssl.ca.pem")),
            certificate_location=get("ssl.certificate.location"),
            certificate=_pem(get("ssl.certificate.pem")),
            key_location=get("ssl.key.location"),
            key=_pem(get("ssl.key.pem")),
            key_password=get("ssl.key.password"),
            checks_hostname=_checks_hostname(settings),
            checks_certificate=_boolean(settings, "enable.ssl.certificate.verification"),
            mechanism=get("sasl.mechanism"),
            username=get("sasl.username"),
            password=get("sasl.password"),
            tokens=_tokens(settings),
            extensions=_extensions(get("sasl.oauthbearer.extensions", "")),
        )
        security._check()
        return security

    @classmethod
    def from_file(cls, path: Path | str) -> Security:
        """From a properties file, whose other settings are ignored."""
        return cls.from_settings(security_settings(read_client_settings(Path(path))))

    def _check(self) -> None:
        if self.protocol not in PROTOCOLS:
            known = ", ".join(PROTOCOLS)
            raise ConfigError(f"security.protocol is {self.protocol}; it must be one of {known}")
        if self.uses_sasl and self.mechanism is None:
            raise ConfigError(f"{self.protocol} needs a sasl.mechanism, such as SCRAM-SHA-256")
        if self.mechanism is not None and self.mechanism not in MECHANISMS:
            known = ", ".join(MECHANISMS)
            raise ConfigError(f"sasl.mechanism is {self.mechanism}; it must be one of {known}")
        if self.mechanism == OAUTHBEARER and self.tokens is None:
            raise ConfigError(f"OAUTHBEARER needs {URL_NAME}")
        if not self.uses_sasl and self.mechanism is not None:
            raise ConfigError(
                f"sasl.mechanism is {self.mechanism}, but security.protocol is {self.protocol}; "
                "set it to SASL_SSL or SASL_PLAINTEXT"
            )
        files = (self.ca_location, self.ca_certificates, self.certificate_location)
        if not self.uses_tls and any(files):
            raise ConfigError(
                f"ssl.* is set, but security.protocol is {self.protocol}; set it to SSL or SASL_SSL"
            )

    @property
    def uses_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL")

    # For our own client

    def tls_context(self) -> ssl.SSLContext:
        """Reads the files, so a new connection has new certificates.

        Raises `ConfigError` for files that are not there, or not PEM.
        """
        location, is_directory = self.ca_location, False
        if location is not None:
            is_directory = Path(location).is_dir()
        try:
            context = ssl.create_default_context(
                cafile=None if is_directory else location,
                capath=location if is_directory else None,
                cadata=self.ca_certificates,
            )
        except (OSError, ValueError, TypeError) as error:  # the last: inline, not ASCII
            raise ConfigError(f"ssl.ca.location {location or '(inline)'}: {error}") from error
        context.check_hostname = self.checks_hostname and self.checks_certificate
        if not self.checks_certificate:
            context.verify_mode = ssl.CERT_NONE
        if self.certificate is not None or self.certificate_location is not None:
            self._load_certificate(context)
        return context

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        with (
            _as_file(self.certificate, self.certificate_location) as certificate,
            _as_file(self.key, self.key_location) as key,
        ):
            try:
                # Without a password OpenSSL would ask for it on the terminal.
                context.load_cert_chain(certificate or "", key, self.key_password or "")
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"ssl.certificate.location {self.certificate_location or '(inline)'}, "
                    f"ssl.key.location {self.key_location or '(inline)'}: {error}"
                ) from error

    def login(self) -> Login:
        """A new exchange of credentials. Raises `OSError` if there is no token at the moment."""
        assert self.mechanism is not None
        return make_login(
            self.mechanism,
            username=self.username,
            password=self.password,
            token=None if self.tokens is None else self.tokens.token().text,
            extensions=dict(self.extensions),
        )

    # For others

    def librdkafka(self) -> dict[str, Any]:
        """The same for librdkafka, whose tokens we fetch: `oauth_cb` is confluent-kafka's."""
        found: dict[str, Any] = {"security.protocol": self.protocol}
        if self.uses_tls:
            key_location = self.key_location
            if self.key is None and key_location is None:
                key_location = self.certificate_location  # both in one file
            found |= {
                "ssl.ca.location": self.ca_location,
                "ssl.ca.pem": self.ca_certificates,
                "ssl.certificate.location": self.certificate_location,
                "ssl.certificate.pem": self.certificate,
                "ssl.key.location": key_location,
                "ssl.key.pem": self.key,
                "ssl.key.password": self.key_password,
            }
            if not self.checks_hostname:
                found["ssl.endpoint.identification.algorithm"] = "none"
            if not self.checks_certificate:
                found["enable.ssl.certificate.verification"] = "false"
        if self.uses_sasl:
            found |= {
                "sasl.mechanism": self.mechanism,
                "sasl.username": self.username,
                "sasl.password": self.password,
            }
        if self.tokens is not None:
            found["oauth_cb"] = self._token_for_librdkafka
        return {name: value for name, value in found.items() if value is not None}

    def _token_for_librdkafka(self, _config: str) -> tuple[str, float, str, dict[str, str]]:
        assert self.tokens is not None
        token = self.tokens.token()
        return token.text, token.expires_at, "", dict(self.extensions)

    def options(self) -> dict[str, str]:
        """The same as options of Spark's `format("millstream")`."""
        found = {name: it for name, it in self.librdkafka().items() if name != "oauth_cb"}
        if self.tokens is not None:
            given = {
                URL_NAME: self.tokens.url,
                "sasl.oauthbearer.client.id": self.tokens.client_id,
                "sasl.oauthbearer.client.secret": self.tokens.client_secret,
                "sasl.oauthbearer.scope": self.tokens.scope,
                "sasl.oauthbearer.extensions": ",".join(map("=".join, self.extensions)) or None,
                "https.ca.location": self.tokens.ca_location,
            }
            found |= {name: it for name, it in given.items() if it is not None}
        return {f"kafka.{name}": value for name, value in found.items()}

    def java(self) -> dict[str, str]:
        """The same for Java clients: Apache's tools, and (as `kafka.` options) Spark's connector.

        Raises `ConfigError` for what Java cannot do.
        """
        found: dict[str, str | None] = {"security.protocol": self.protocol}
        if self.uses_tls:
            found |= self._java_stores()
        if self.uses_sasl:
            found |= {"sasl.mechanism": self.mechanism, "sasl.jaas.config": self._jaas()}
        if self.tokens is not None:
            handler = f"{_JAVA_MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler"
            found |= {"sasl.login.callback.handler.class": handler, URL_NAME: self.tokens.url}
        return {name: value for name, value in found.items() if value is not None}

    def _java_stores(self) -> dict[str, str | None]:
        if not self.checks_certificate:
            raise ConfigError(
                "Java clients always check certificates: set ssl.ca.location instead of "
                "enable.ssl.certificate.verification"
            )
        if self.key_location not in (None, self.certificate_location):
            raise ConfigError(
                "Java reads the key and the certificate from one file: join them, with cat, and "
                "set ssl.certificate.location to it"
            )
        trusts = self.ca_location or self.ca_certificates
        shows = self.certificate_location or self.certificate
        return {
            "ssl.truststore.type": "PEM" if trusts else None,
            "ssl.truststore.location": self.ca_location,
            "ssl.truststore.certificates": self.ca_certificates,
            "ssl.keystore.type": "PEM" if shows else None,
            "ssl.keystore.location": self.certificate_location,
            "ssl.keystore.certificate.chain": self.certificate,
            "ssl.keystore.key": self.key,
            "ssl.key.password": self.key_password,
            "ssl.endpoint.identification.algorithm": None if self.checks_hostname else "",
        }

    def _jaas(self) -> str:
        if self.tokens is not None:
            module = f"oauthbearer.{OAUTHBEARER_MODULE}"
            options = {
                "clientId": self.tokens.client_id,
                "clientSecret": self.tokens.client_secret,
                "scope": self.tokens.scope,
                **{f"extension_{name}": value for name, value in self.extensions},
            }
        else:
            module = f"plain.{PLAIN_MODULE}" if self.mechanism == PLAIN else f"scram.{SCRAM_MODULE}"
            options = {"username": self.username, "password": self.password}
        texts = (
            f' {name}="{value.replace(chr(92), chr(92) * 2).replace(chr(34), chr(92) + chr(34))}"'
            for name, value in options.items()
            if value is not None
        )
        return f"{_JAVA_MODULES}.{module} required{''.join(texts)};"


def is_security_setting(name: str) -> bool:
    """Whether a client's setting is about security, known or not."""
    return name.startswith(_PREFIXES) or name == "enable.ssl.certificate.verification"


def security_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Those of a client's settings that are about security."""
    return {name: value for name, value in settings.items() if is_security_setting(name)}


def read_connection(path: Path) -> tuple[dict[str, str], str | None]:
    """The security settings of a client's file, with librdkafka's names, and its brokers."""
    settings = read_client_settings(path)
    return standard_names(security_settings(settings)), settings.get(BOOTSTRAP_SERVERS)


def refuse_unknown(name: str, prefix: str = "") -> None:
    """Raises `ConfigError` for a setting that does not exist; `prefix` is that of the user's."""
    if name in KNOWN:
        return
    if name in _INSTEAD or name.startswith("sasl.kerberos."):
        instead = _INSTEAD.get(name, _INSTEAD["sasl.kerberos.service.name"])
        raise ConfigError(f"{prefix}{name} is not supported; use {instead}")
    close = get_close_matches(name, SETTINGS, n=1)
    hint = f"did you mean {prefix}{close[0]}?" if close else f"known settings: {', '.join(KNOWN)}"
    raise ConfigError(f"unknown setting {prefix}{name}; {hint}")


def standard_names(settings: Mapping[str, str]) -> dict[str, str]:
    """The same settings, with librdkafka's names only. Raises `ConfigError`."""
    for name in settings:
        refuse_unknown(name)
    if "ssl.truststore.location" in settings or "ssl.truststore.certificates" in settings:
        _must_be_pem(settings, "ssl.truststore", "ssl.ca.location")
    if "ssl.keystore.location" in settings or "ssl.keystore.key" in settings:
        _must_be_pem(settings, "ssl.keystore", "ssl.certificate.location and ssl.key.location")
    found = {_SAME.get(name, name): value for name, value in settings.items()}
    if "sasl.jaas.config" in found:
        found |= _from_jaas(found["sasl.jaas.config"])
    return {name: value for name, value in found.items() if name in SETTINGS}


def _must_be_pem(settings: Mapping[str, str], store: str, instead: str) -> None:
    kind = settings.get(f"{store}.type", "JKS")
    if kind.upper() != "PEM":
        how = how_to_convert(settings.get(f"{store}.location", "store.jks"))
        raise ConfigError(
            f"{store}.location is a {kind} store, which only Java reads; {how}, and set {instead}, "
            f"or keep Java's name with {store}.type=PEM"
        )


def _from_jaas(jaas: str) -> dict[str, str]:
    parsed = parse_jaas(jaas)
    instead = _JAAS_MECHANISMS.get(parsed.module)
    if instead is None:
        raise ConfigError(
            f"sasl.jaas.config uses {parsed.module}; only {', '.join(_JAAS_MECHANISMS)} are "
            "supported. Set sasl.username and sasl.password"
        )
    options = parsed.options
    if parsed.module == OAUTHBEARER_MODULE:
        found = {
            "sasl.oauthbearer.client.id": options.get("clientId"),
            "sasl.oauthbearer.client.secret": options.get("clientSecret"),
            "sasl.oauthbearer.scope": options.get("scope"),
        }
        return {name: value for name, value in found.items() if value is not None}
    if parsed.login is None:
        raise ConfigError(f"sasl.jaas.config has no username and password; set {instead}")
    return {"sasl.username": parsed.login[0], "sasl.password": parsed.login[1]}


def _tokens(settings: Mapping[str, str]) -> TokenSource | None:
    url = settings.get(URL_NAME)
    if url is None or settings.get("sasl.mechanism") != OAUTHBEARER:
        return None
    return TokenSource(
        url,
        settings.get("sasl.oauthbearer.client.id"),
        settings.get("sasl.oauthbearer.client.secret"),
        settings.get("sasl.oauthbearer.scope"),
        settings.get("https.ca.location"),
    )


def _extensions(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [it.partition("=") for it in text.split(",") if it.strip()]
    if not all(name.strip() and equals for name, equals, _ in pairs):
        raise ConfigError("sasl.oauthbearer.extensions: write name=value,name=value")
    return tuple((name.strip(), value.strip()) for name, _, value in pairs)


def _checks_hostname(settings: Mapping[str, str]) -> bool:
    name = "ssl.endpoint.identification.algorithm"
    text = settings.get(name, "https").lower()
    if text not in ("https", "none", ""):
        raise ConfigError(f"{name} is {text!r}; it must be https, or none (in Java: empty)")
    return text == "https"


def _boolean(settings: Mapping[str, str], name: str) -> bool:
    text = settings.get(name, "true").lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{name} is {text!r}; it must be true or false")
    return text == "true"


def _pem(text: str | None) -> str | None:
    r"""PEM of a line: properties files have it with \n, or with blanks, as Java allows."""
    if text is None or "\n" in text.strip():
        return text
    head, _, rest = text.strip().replace("\\n", "\n").partition("-----\n")
    return f"{head}-----\n{rest}\n" if rest else text


def _as_file(
    text: str | None, location: str | None
) -> contextlib.AbstractContextManager[str | None]:
    return contextlib.nullcontext(location) if text is None else private_file(text)
