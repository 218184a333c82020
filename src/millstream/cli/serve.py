"""`millstream serve`: run a broker in this process until it is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millstream.cli import serving
from millstream.cli.serving import DATA_DEFAULT, LISTEN_DEFAULT, ServeOptions

app = typer.Typer(
    help="Run a broker until Ctrl-C or SIGTERM.", rich_markup_mode="rich", add_completion=False
)

ZooKeeper = Annotated[
    str | None,
    typer.Option(
        *serving.ZOOKEEPER,
        metavar="HOST:PORT,.../CHROOT",
        help="Join the cluster whose metadata is in this ZooKeeper, or found it. Needs the extra "
        "'cluster'.",
    ),
]
NodeId = Annotated[
    int | None,
    typer.Option(
        *serving.NODE_ID,
        min=0,
        metavar="N",
        help="This broker's id in its cluster. Default: 1.",
    ),
]

Metrics = Annotated[
    str | None,
    typer.Option(
        *serving.METRICS,
        metavar="HOST:PORT",
        help="Serve metrics for Prometheus at /metrics, and the probes /health and /ready.",
    ),
]
LogFormat = Annotated[
    str | None,
    typer.Option(
        *serving.LOG_FORMAT, metavar="text|json", help="Format of log lines. Default: text."
    ),
]

Console = Annotated[
    str | None,
    typer.Option(
        *serving.CONSOLE,
        metavar="[HOST:PORT]",
        help="Also serve the console, for browsers. Default address: "
        f"{serving.CONSOLE_DEFAULT}. Needs the extra 'console'.",
    ),
]
ConsoleClientConfig = Annotated[
    Path | None,
    typer.Option(
        *serving.CONSOLE_CLIENT_CONFIG,
        exists=True,
        dir_okay=False,
        metavar="FILE",
        help="A properties file of client settings, with which the console reaches the broker. "
        "Default: its listener without TLS, or with the authorities that the broker trusts.",
    ),
]
ConsoleAllowHost = Annotated[
    list[str] | None,
    typer.Option(
        *serving.CONSOLE_ALLOW_HOST,
        metavar="NAME",
        help="The console answers to this name too; repeatable.",
    ),
]
ConsoleTlsCertificate = Annotated[
    Path | None,
    typer.Option(
        *serving.CONSOLE_TLS_CERTIFICATE,
        metavar="FILE",
        help="Serve the console by HTTPS, with this certificate (PEM).",
    ),
]
ConsoleTlsKey = Annotated[
    Path | None,
    typer.Option(
        *serving.CONSOLE_TLS_KEY, metavar="FILE", help="The key of the certificate (PEM)."
    ),
]
Listen = Annotated[
    str | None,
    typer.Option(
        *serving.LISTEN,
        metavar="HOST:PORT",
        help=f"Address to listen on. Default: {LISTEN_DEFAULT}; port 0: any free port.",
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        *serving.DATA, metavar="DIR,...", help=f"Data directory. Default: {DATA_DEFAULT}."
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        *serving.CONFIG,
        exists=True,
        dir_okay=False,
        help="Properties or TOML file, with Kafka's names.",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(*serving.SET, metavar="NAME=VALUE", help="A broker setting; repeatable."),
]
Workers = Annotated[
    int | None,
    typer.Option(
        *serving.WORKERS,
        metavar="N",
        help="Run N brokers that share the data directory, to use N cores. They listen on the "
        "N ports after that of --listen, which all of them share. 0: a single broker again, after "
        "workers have used the directory.",
    ),
]


@app.command()
def serve(
    listen: Listen = None,
    data: Data = None,
    config: ConfigFile = None,
    set_: Set = None,
    workers: Workers = None,
    zookeeper: ZooKeeper = None,
    node_id: NodeId = None,
    metrics: Metrics = None,
    log_format: LogFormat = None,
    console: Console = None,
    console_client_config: ConsoleClientConfig = None,
    console_allow_host: ConsoleAllowHost = None,
    console_tls_certificate: ConsoleTlsCertificate = None,
    console_tls_key: ConsoleTlsKey = None,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    Prints one line when it is ready. Settings have Kafka's names and come from
    --config, then MILLSTREAM_* variables, then --set; later ones override earlier ones.

    [bold]Examples[/bold]

    \b
      millstream serve
      millstream serve --listen 0.0.0.0:9092 --data /var/lib/millstream
      millstream serve --set num.partitions=4 --set log.retention.hours=24
      millstream serve --config server.properties --data /disk1,/disk2
      millstream serve --workers 4 --listen 127.0.0.1:9092
      millstream serve --zookeeper zk1:2181,zk2:2181/millstream --node-id 2
      millstream serve --metrics 127.0.0.1:9404 --log-format json
      millstream serve --console
    """
    assignments, hosts = tuple(set_ or ()), tuple(console_allow_host or ())
    options = ServeOptions(
        *(listen, data, config, assignments, workers, zookeeper, node_id, metrics, log_format),
        *(console, console_client_config, hosts, console_tls_certificate, console_tls_key),
    )
    serving.serve(options)
