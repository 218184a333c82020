"""`millstream serve` after its options are parsed, and a fast parser for them.

Importing Typer and pydantic takes longer than starting the broker, and their memory would stay
allocated. So simple options are parsed here (`parse_plainly`). Everything else, including --help
and errors, is left to Typer in `millstream.cli.serve`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from millstream import json_logs
from millstream.cli.failures import usage_error
from millstream.config.broker import BrokerConfig
from millstream.config.sources import from_environment, load, parse_assignments, read_file

LISTEN_DEFAULT = "127.0.0.1:9092"
DATA_DEFAULT = "./millstream-data"
METRICS_EXAMPLE = "127.0.0.1:9404"

LISTEN = ("--listen",)
DATA = ("--data",)
CONFIG = ("--config",)
SET = ("--set", "-s")
WORKERS = ("--workers",)
ZOOKEEPER = ("--zookeeper",)
NODE_ID = ("--node-id",)
METRICS = ("--metrics",)
LOG_FORMAT = ("--log-format",)
CONSOLE = ("--console",)
CONSOLE_CLIENT_CONFIG = ("--console-client-config",)
CONSOLE_ALLOW_HOST = ("--console-allow-host",)
CONSOLE_TLS_CERTIFICATE = ("--console-tls-certificate",)
CONSOLE_TLS_KEY = ("--console-tls-key",)
CONSOLE_DEFAULT = "127.0.0.1:8080"


class ServeOptions(NamedTuple):
    listen: str | None = None
    data: str | None = None
    config: Path | None = None
    assignments: tuple[str, ...] = ()
    workers: int | None = None
    zookeeper: str | None = None
    node_id: int | None = None
    metrics: str | None = None
    log_format: str | None = None
    console: str | None = None
    console_client_config: Path | None = None
    console_allow_host: tuple[str, ...] = ()
    console_tls_certificate: Path | None = None
    console_tls_key: Path | None = None


def complete(arguments: Sequence[str]) -> list[str]:
    """The arguments; `--console` without an address gets the default one."""
    completed: list[str] = []
    for index, argument in enumerate(arguments):
        completed.append(argument)
        following = arguments[index + 1 : index + 2]
        if argument in CONSOLE and (not following or following[0].startswith("-")):
            completed.append(CONSOLE_DEFAULT)
    return completed


def parse_plainly(arguments: Sequence[str]) -> ServeOptions | None:
    """The options, if each is a known name followed by its value; None: leave it to Typer."""
    options = ServeOptions()
    if len(arguments) % 2:
        return None
    for name, value in zip(arguments[::2], arguments[1::2], strict=True):
        if value.startswith("-"):
            return None
        if name in LISTEN:
            options = options._replace(listen=value)
        elif name in DATA:
            options = options._replace(data=value)
        elif name in CONFIG and Path(value).is_file():
            options = options._replace(config=Path(value))
        elif name in SET:
            options = options._replace(assignments=(*options.assignments, value))
        elif name in WORKERS and value.isdigit():
            options = options._replace(workers=int(value))
        elif name in ZOOKEEPER:
            options = options._replace(zookeeper=value)
        elif name in NODE_ID and value.isdigit():
            options = options._replace(node_id=int(value))
        elif name in METRICS:
            options = options._replace(metrics=value)
        elif name in LOG_FORMAT and value in json_logs.FORMATS:
            options = options._replace(log_format=value)
        elif name in CONSOLE:
            options = options._replace(console=value)
        elif name in CONSOLE_CLIENT_CONFIG and Path(value).is_file():
            options = options._replace(console_client_config=Path(value))
        elif name in CONSOLE_ALLOW_HOST:
            hosts = (*options.console_allow_host, value)
            options = options._replace(console_allow_host=hosts)
        elif name in CONSOLE_TLS_CERTIFICATE:
            options = options._replace(console_tls_certificate=Path(value))
        elif name in CONSOLE_TLS_KEY:
            options = options._replace(console_tls_key=Path(value))
        else:
            return None
    return options


def serve(options: ServeOptions) -> None:
    """Run a broker, or several workers, until stopped."""
    settings = gather_settings(options.listen, options.data, options.config, with_cluster(options))
    if options.workers is not None and settings.zookeeper_connect is not None:
        raise usage_error(
            "--workers and --zookeeper exclude each other: workers of one host share its data "
            "directory, and brokers of a cluster have their own; start one broker per core instead"
        )
    json_logs.configure(settings.millstream_log_format)
    if options.workers == 0:
        from millstream.broker.workers.supervisor import leave_workers

        leave_workers(settings)
        options = options._replace(workers=None)
    if options.console is not None:
        serve_with_console(options, settings)
        return
    # Settings that are refused need no broker.
    if options.workers is not None:
        from millstream.broker.workers.supervisor import run as run_workers

        run_workers(settings, options.workers)
    else:
        from millstream.broker.process import run

        run(settings)


def serve_with_console(options: ServeOptions, settings: BrokerConfig) -> None:
    """The same, with a console that starts when the broker serves, and stops after it."""
    from millstream.cli.beside import ConsoleBeside

    assert options.console is not None
    beside = ConsoleBeside(
        options.console,
        options.console_client_config,
        allowed_hosts=options.console_allow_host,
        tls_certificate=options.console_tls_certificate,
        tls_key=options.console_tls_key,
    )
    try:
        if options.workers is not None:
            from millstream.broker.workers.supervisor import run as run_workers
            from millstream.broker.workers.supervisor import say_ready as say_workers_ready

            def workers_ready(workers: Any) -> None:
                say_workers_ready(workers)
                beside.start(settings, workers.listener_addresses)

            run_workers(settings, options.workers, ready=workers_ready)
        else:
            from millstream.broker.process import run, say_ready

            def ready(server: Any) -> None:
                say_ready(server)
                beside.start(settings, server.listener_addresses)

            run(settings, ready=ready)
    finally:
        beside.stop()


def with_cluster(options: ServeOptions) -> tuple[str, ...]:
    """The assignments; `--zookeeper`, `--node-id`, ... are short for more of them."""
    assignments = options.assignments
    if options.zookeeper is not None:
        assignments += (f"zookeeper.connect={check_servers(options.zookeeper)}",)
    if options.node_id is not None:
        assignments += (f"node.id={options.node_id}",)
    if options.metrics is not None:
        assignments += (f"millstream.metrics.listener={check_metrics(options.metrics)}",)
    if options.log_format is not None:
        assignments += (f"millstream.log.format={options.log_format}",)
    return assignments


def check_metrics(address: str) -> str:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise usage_error(f"--metrics {address!r}: write it as HOST:PORT, e.g. {METRICS_EXAMPLE}")
    return f"{host}:{port}"


def check_servers(hosts: str) -> str:
    servers, slash, chroot = hosts.partition("/")
    for server in servers.split(","):
        host, _, port = server.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) <= 65535:
            raise usage_error(
                f"--zookeeper {hosts!r}: write it as HOST:PORT,HOST:PORT/CHROOT, e.g. "
                "zk1:2181,zk2:2181,zk3:2181/millstream"
            )
    return servers + slash + chroot


def gather_settings(
    listen: str | None, data: str | None, config: Path | None, assignments: Sequence[str]
) -> BrokerConfig:
    """All sources in their order; `--listen` and `--data` are short for `listeners`, `log.dirs`."""
    overrides: dict[str, object] = {}
    given = from_environment(os.environ).keys() | (read_file(config).keys() if config else set())
    if listen is not None or "listeners" not in given:
        overrides["listeners"] = f"PLAINTEXT://{check_address(listen or LISTEN_DEFAULT)}"
    if data is not None or not given & {"log.dirs", "log.dir"}:
        overrides["log.dirs"] = data or DATA_DEFAULT
    overrides |= parse_assignments(assignments)
    return load(config, os.environ, overrides)


def check_address(address: str) -> str:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise usage_error(f"--listen {address!r}: write it as HOST:PORT, e.g. {LISTEN_DEFAULT}")
    return f"{host}:{port}"
