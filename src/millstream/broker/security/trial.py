"""A secured broker in one line, for tests and trials: certificates made on the spot, and users.

    Broker.start(security="SASL_SSL", users={"alice": "secret"})

With SASL, users log in with PLAIN; those that are created later (`millstream user`) with SCRAM too.
With SSL, each user has a certificate, and a client without one is `User:ANONYMOUS`.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from millstream.errors import ConfigError
from millstream.security.jaas import PLAIN_MODULE
from millstream.security.protocol import SecurityProtocol

MECHANISMS = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
HOSTS = ("localhost", "127.0.0.1", "::1")
_JAAS_NAME = re.compile(r"[^\s;=\"']+")
_USER_OF_CERTIFICATE = "RULE:^CN=(.*)$/$1/"


class TrialSecurity:
    """See the module. Its files are deleted by `close`."""

    def __init__(self, protocol: str, users: Mapping[str, str]) -> None:
        """Raises `ConfigError`."""
        if protocol not in SecurityProtocol.__members__:
            known = ", ".join(SecurityProtocol.__members__)
            raise ConfigError(f"security is {protocol!r}; it must be one of {known}")
        self.protocol = SecurityProtocol[protocol]
        if self.protocol.uses_sasl and not users:
            raise ConfigError(f'{protocol} needs users, such as users={{"alice": "secret"}}')
        if users and self.protocol is SecurityProtocol.PLAINTEXT:
            raise ConfigError("users need security: SASL_SSL, SASL_PLAINTEXT or SSL")
        self._users = dict(users)
        self.settings: dict[str, str] = {}
        self._directory: Path | None = None
        if self.protocol.uses_sasl:
            self.settings["sasl.enabled.mechanisms"] = MECHANISMS
            self.settings["sasl.jaas.config"] = _jaas(users)
        if self.protocol.uses_tls:
            self._directory = Path(tempfile.mkdtemp(prefix="millstream-tls-"))
            try:
                self._make_certificates(self._directory)
            except BaseException:
                self.close()
                raise

    def _make_certificates(self, directory: Path) -> None:
        try:
            from millstream.security.certificates import make_authority
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"certificates need the package {error.name}: pip install 'millstream[security]'"
            ) from None
        now = datetime.now(UTC)
        authority = make_authority("Millstream trial", now)
        (directory / "authority.pem").write_text(authority.certificate)
        _write_private(directory / "broker.pem", authority.sign("broker", now, hosts=HOSTS).pem)
        self.settings["ssl.keystore.location"] = str(directory / "broker.pem")
        self.settings["ssl.truststore.location"] = str(directory / "authority.pem")
        if not self.protocol.uses_sasl:
            self.settings["ssl.client.auth"] = "requested"
            self.settings["ssl.principal.mapping.rules"] = _USER_OF_CERTIFICATE
            for number, user in enumerate(self._users):
                _write_private(directory / f"user-{number}.pem", authority.sign(user, now).pem)

    def client_settings(self, user: str | None) -> dict[str, str]:
        """With librdkafka's names; without bootstrap.servers. Raises `ConfigError`."""
        if user is not None and user not in self._users:
            raise ConfigError(f"there is no user {user!r}, only {', '.join(self._users) or 'none'}")
        settings = {"security.protocol": self.protocol.name}
        if self._directory is not None:
            settings["ssl.ca.location"] = str(self._directory / "authority.pem")
        if self.protocol.uses_sasl:
            name = next(iter(self._users)) if user is None else user
            settings |= {
                "sasl.mechanism": "PLAIN",
                "sasl.username": name,
                "sasl.password": self._users[name],
            }
        elif self._directory is not None and user is not None:
            store = str(self._directory / f"user-{list(self._users).index(user)}.pem")
            settings |= {"ssl.certificate.location": store, "ssl.key.location": store}
        return settings

    def close(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


def _jaas(users: Mapping[str, str]) -> str:
    for user in users:
        if not _JAAS_NAME.fullmatch(user):
            raise ConfigError(
                f"user {user!r}: names have no blanks, quotes, equals signs or semicolons in PLAIN"
            )
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in users.values())
    entries = " ".join(f'user_{user}="{value}"' for user, value in zip(users, quoted, strict=True))
    return f"{PLAIN_MODULE} required {entries};"


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)
