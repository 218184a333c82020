"""`millstream console`: serve the console of any Kafka cluster, until Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.beside import needs_extra
from millstream.cli.options import BOOTSTRAP_DEFAULT, BootstrapServer, ClientConfig
from millstream.cli.output import warn
from millstream.client.schema_registry import registry_settings
from millstream.client.security import read_connection
from millstream.client.settings import read_client_settings
from millstream.console.settings import LISTEN_DEFAULT, ConsoleSettings
from millstream.errors import MillstreamError

app = typer.Typer(
    help="Show and steer a cluster in a browser, until Ctrl-C.",
    rich_markup_mode="rich",
    add_completion=False,
)


@app.command()
def console(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the console. Port 0: any free one.")
    ] = LISTEN_DEFAULT,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Answer to this name too; repeatable."),
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve HTTPS, with this certificate (PEM).")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The key of the certificate (PEM).")
    ] = None,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Show and steer a cluster in a browser, until Ctrl-C.

    The console is a Kafka client like any other: it shows Millstream and Apache Kafka. Where the
    brokers want a log-in, the console asks for a user of the cluster and acts as that user. With a
    user or a certificate in --client-config, all browsers act as that one, and the printed address
    contains a token that they need. Needs the extra 'console'.

    [bold]Examples[/bold]

    \b
      millstream console
      millstream console --bootstrap-server kafka1:9092,kafka2:9092 --listen 127.0.0.1:8085
      millstream console --client-config client.properties
    """
    try:
        from millstream.console.server import ConsoleServer
        from millstream.console.sessions import detected
    except ModuleNotFoundError as missing:
        raise needs_extra(missing) from None

    security, servers = read_connection(client_config) if client_config else ({}, None)
    registry = registry_settings(read_client_settings(client_config)) if client_config else {}
    if servers is not None and bootstrap_server == BOOTSTRAP_DEFAULT:
        bootstrap_server = servers
    settings = ConsoleSettings(
        bootstrap_servers=bootstrap_server,
        client_settings=security | registry,
        allowed_hosts=tuple(allow_host or ()),
        tls_certificate=str(tls_certificate) if tls_certificate else None,
        tls_key=str(tls_key) if tls_key else None,
    )
    try:
        settings = detected(settings)
    except (OSError, MillstreamError) as error:  # pages will show it, too
        warn(
            f"it is not known whether the brokers want a log-in: {error}. If they do, start the "
            "console again once they answer, or give --client-config with security.protocol"
        )
    server = ConsoleServer(settings, listen)
    for risk in server.warnings:
        warn(risk)
    server.run(ready=lambda: typer.echo(f"console of {bootstrap_server} at {server.entrance}"))
