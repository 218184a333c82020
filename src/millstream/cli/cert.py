"""`millstream cert`: certificates to try TLS on one machine, with the settings that use them."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.failures import CommandFailed, usage_error
from millstream.cli.output import console
from millstream.security.jaas import SCRAM_MODULE

if TYPE_CHECKING:
    from millstream.security.certificates import Authority, Signed

app = typer.Typer(
    help="Make certificates to try TLS on one machine.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)

LOOPBACK = ("localhost", "127.0.0.1", "::1")
ADMIN = "admin"
TLS_ADDRESS, SASL_ADDRESS = "127.0.0.1:9092", "127.0.0.1:9093"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TAKEN = ("ca", "broker", "server", "client")  # names of the other files

SERVER_PROPERTIES = """\
# A broker for `millstream serve --config`, or lines for Apache Kafka's server.properties.
# Programs with a certificate of {directory} come in at {tls}, users with a password at {sasl}.
listeners=SSL://{tls},SASL_SSL://{sasl}
inter.broker.listener.name=SSL
ssl.keystore.type=PEM
ssl.keystore.location={directory}/broker.pem
ssl.truststore.type=PEM
ssl.truststore.location={directory}/ca.pem
ssl.client.auth=required
# A certificate for CN=ann is the user ann.
ssl.principal.mapping.rules=RULE:^CN=([^,]+)$/$1/,DEFAULT
sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512
# Apache Kafka wants them to be named.
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config={module} required;
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={module} required;
# Nobody else may do anything until an ACL allows it.
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:admin;User:broker
"""

CERTIFICATE_PROPERTIES = """\
# For --client-config, MILLSTREAM_CLIENT_CONFIG and librdkafka.
bootstrap.servers={tls}
security.protocol=SSL
ssl.ca.location={directory}/ca.pem
ssl.certificate.location={directory}/{name}.pem
ssl.key.location={directory}/{name}.pem
"""

PASSWORD_PROPERTIES = """\
# For --client-config, MILLSTREAM_CLIENT_CONFIG and librdkafka: fill in who you are.
bootstrap.servers={sasl}
security.protocol=SASL_SSL
ssl.ca.location={directory}/ca.pem
sasl.mechanism=SCRAM-SHA-512
#sasl.username=
#sasl.password=
"""


@app.callback()
def cert() -> None:
    """Make certificates to try TLS on one machine."""


@app.command()
def dev(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write them.")],
    clients: Annotated[
        list[str] | None,
        typer.Option(
            "--client",
            metavar="NAME",
            help="Also make a certificate for this client. Repeatable; in a DIR that was made "
            "before, only this is added.",
        ),
    ] = None,
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME",
            help="A name or address of the broker besides localhost. Repeatable.",
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="How long they are valid.")] = 825,
) -> None:
    """Make an authority, a broker's certificate and clients' certificates.

    The files of DIR are ready to use: server.properties for a broker with TLS, users and
    access control, admin.properties for its administrator, client.properties for users with a
    password. Anyone with ca.key can be any user: keep it to yourself, and use another authority
    in production.

    [bold]Examples[/bold]

    \b
      millstream cert dev certs
      millstream serve --config certs/server.properties
      millstream --client-config certs/admin.properties topic list
      millstream cert dev certs --client billing
    """
    names = list(dict.fromkeys(clients or ()))
    check_names(names)
    directory = directory.absolute()
    now = datetime.now(UTC)
    if (directory / "ca.key").exists():
        if not names or hosts:
            raise CommandFailed(
                f"{directory} has an authority already; add a client with --client NAME, or "
                "choose another directory"
            )
        files: dict[str, str] = {}
        authority = load_authority(directory)
    else:
        files, authority = make_broker_files(directory, [*LOOPBACK, *(hosts or ())], now, days)
        names = list(dict.fromkeys([ADMIN, *names]))
    for name in names:
        files |= client_files(directory, name, authority.sign(name, now, days=days))
    write_all(directory, files)
    for file in files:
        console().print(f"{directory / file}", highlight=False, soft_wrap=True)


def check_names(names: list[str]) -> None:
    for name in names:
        if name in _TAKEN or not _NAME.fullmatch(name):
            raise usage_error(
                f"--client {name!r}: write a name of letters, digits, '.', '_' and '-' other than "
                f"{', '.join(_TAKEN)}"
            )


def make_broker_files(
    directory: Path, hosts: list[str], now: datetime, days: int
) -> tuple[dict[str, str], Authority]:
    make_authority = certificates().make_authority
    authority: Authority = make_authority("Millstream development authority", now)
    broker = authority.sign("broker", now, hosts=hosts, days=days)
    values = {
        "directory": directory,
        "tls": TLS_ADDRESS,
        "sasl": SASL_ADDRESS,
        "module": f"org.apache.kafka.common.security.scram.{SCRAM_MODULE}",
    }
    files = {
        "ca.pem": authority.certificate,
        "ca.key": authority.key,
        "broker.pem": broker.pem,
        "server.properties": SERVER_PROPERTIES.format(**values),
        "client.properties": PASSWORD_PROPERTIES.format(**values),
    }
    return files, authority


def client_files(directory: Path, name: str, signed: Signed) -> dict[str, str]:
    settings = CERTIFICATE_PROPERTIES.format(directory=directory, name=name, tls=TLS_ADDRESS)
    return {f"{name}.pem": signed.pem, f"{name}.properties": settings}


def load_authority(directory: Path) -> Authority:
    texts = [(directory / name).read_text(encoding="utf-8") for name in ("ca.pem", "ca.key")]
    try:
        authority: Authority = certificates().Authority.load(*texts)
    except ValueError as error:
        raise CommandFailed(f"{directory}: ca.pem and ca.key cannot be used: {error}") from error
    return authority


def certificates() -> Any:
    try:
        from millstream.security import certificates
    except ImportError:
        raise CommandFailed(
            "certificates need cryptography: pip install 'millstream[security]'"
        ) from None
    return certificates


def write_all(directory: Path, files: dict[str, str]) -> None:
    """Refuses to overwrite any. Files with a key, or with room for a password, are private."""
    existing = [name for name in files if (directory / name).exists()]
    if existing:
        raise CommandFailed(f"{directory} has {', '.join(existing)} already; nothing was written")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, text in files.items():
        secret = "PRIVATE KEY" in text or "sasl.password" in text
        mode = 0o600 if secret else 0o644
        descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
