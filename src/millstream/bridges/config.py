"""The file of a bridge: what comes in, what goes out.

    name = "edge"
    broker = "127.0.0.1:9092"
    client_config = "client.properties"     # a Kafka client's settings; relative to this file
    metrics = "127.0.0.1:9410"              # Prometheus, /health, /ready
    publish_status = true                   # for the console and `millstream bridges`

    [http]
    listen = "127.0.0.1:8082"
    produce = ["orders", "clicks-*"]        # topics that may be written; none by default
    read = ["orders"]                       # topics that may be streamed; none by default
    token = { env = "BRIDGE_TOKEN" }        # or { file = "token.txt" }, or a string
    origins = ["https://shop.example"]      # pages of other sites that may call

    [hooks.github]                          # POST /hooks/github
    topic = "pushes"
    signature = "github"                    # standard, github, stripe or none
    secrets = [{ env = "GITHUB_SECRET" }]   # several while one replaces another
    exact = true                            # each id once, checked by the broker

    [webhooks.billing]                      # Standard Webhooks, as the share group webhooks.billing
    topics = ["orders"]
    url = "https://billing.example/hooks"
    secrets = [{ file = "billing.secret" }]
    allow = ["10.0.0.0/8"]                  # private networks that may be called; none by default

    [statsd.app]
    listen = "127.0.0.1:8125"
    topic = "metrics"
    interval_seconds = 10                   # aggregates; 0: each sample is a record

    [mold.in.prices]                        # MoldUDP64 to a topic
    listen = "239.1.1.1:26477"
    request = "10.0.0.7:26478"              # the re-request server
    topic = "prices"

    [mold.out.trades]                       # a partition as MoldUDP64
    topic = "trades"
    to = "239.1.1.2:26477"
    requests = "10.0.0.5:26479"             # where re-requests are answered

    [zeromq.in.jobs]                        # ZeroMQ to a topic
    type = "pull"                           # or "sub"
    bind = ["tcp://10.0.0.5:5557"]          # or connect
    topic = "jobs"

    [zeromq.out.trades]                     # a topic to ZeroMQ
    type = "pub"                            # or "push"
    bind = ["tcp://10.0.0.5:5556"]
    topic = "trades"
    curve_secret = { file = "trades.key" }  # encrypted: the secret key of this socket,
    curve_clients = ["Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"]   # and who may connect

An unknown name is an error that suggests the nearest.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from millstream.bridges.http.signatures import VERIFIERS, key_of
from millstream.bridges.values import (
    NAME,
    flag_of,
    interface_of,
    number_of,
    one_of,
    refuse_unknown,
    secret_of,
    table_of,
    tables_of,
    text_of,
    texts_of,
    topic_of,
    udp_of,
)
from millstream.client.security import read_connection
from millstream.errors import ConfigError
from millstream.metrics.threaded import parse_address
from millstream.security.networks import is_loopback

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

BODY_BYTES_MAX = 8 * 1024 * 1024
STREAMS_MAX = 32
STATSD_BUFFER_BYTES = 32 * 1024 * 1024
FORMATS = ("value", "cloudevents")
_TOP = (
    "name", "broker", "client_config", "metrics", "publish_status", "http", "hooks", "webhooks",
    "statsd", "mold", "zeromq",
)  # fmt: skip
_CURVE = ("curve_secret", "curve_server", "curve_clients")
_Z85 = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_TRANSPORT = re.compile(r"tcp://.+:([0-9]{1,5}|\*)|ipc://.+")


@dataclass(frozen=True)
class HookConfig:
    """Where webhooks of one sender go, and how they are verified."""

    topic: str
    signature: str
    keys: tuple[bytes, ...] = field(repr=False)
    headers: tuple[str, ...] = ()
    exact: bool = False


@dataclass(frozen=True)
class HttpConfig:
    """The HTTP server."""

    listen: str
    produce: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    token: str | None = field(default=None, repr=False)
    origins: tuple[str, ...] = ()
    body_bytes_max: int = BODY_BYTES_MAX
    streams_max: int = STREAMS_MAX
    hooks: Mapping[str, HookConfig] = field(default_factory=dict)


@dataclass(frozen=True)
class WebhookConfig:
    """An endpoint that gets the records of topics."""

    name: str
    topics: tuple[str, ...]
    url: str
    keys: tuple[bytes, ...] = field(repr=False)
    allow: tuple[Network, ...] = ()
    format: str = "value"
    timeout_seconds: float = 15.0
    parallel: int = 4
    attempts: int = 10
    backoff_seconds: float = 300.0
    dead_letters: str = ""
    start: str = "latest"

    @property
    def group(self) -> str:
        return f"webhooks.{self.name}"


@dataclass(frozen=True)
class StatsdConfig:
    """A port for StatsD."""

    name: str
    listen: str
    topic: str
    interval_seconds: float = 10.0
    buffer_bytes: int = STATSD_BUFFER_BYTES


@dataclass(frozen=True)
class MoldInConfig:
    """A stream of MoldUDP64 that goes to a topic."""

    name: str
    listen: str
    topic: str
    request: str | None = None
    interface: str = "0.0.0.0"
    skip_empty: bool = False


@dataclass(frozen=True)
class MoldOutConfig:
    """A partition that is published as MoldUDP64."""

    name: str
    topic: str
    to: str
    requests: str | None = None
    interface: str = "0.0.0.0"
    partition: int = 0
    session: str = ""
    start: str = "latest"
    ttl: int = 1


@dataclass(frozen=True)
class CurveConfig:
    """Encryption of a ZeroMQ socket. With the key of a server it is a client, otherwise a server.
    Keys are 40 characters of Z85."""

    secret: bytes = field(repr=False)
    server: bytes | None = None
    clients: tuple[bytes, ...] | None = None  # None: all that know the server's key


@dataclass(frozen=True)
class ZeromqInConfig:
    """A SUB or PULL socket whose messages go to a topic."""

    name: str
    type: str
    topic: str
    bind: tuple[str, ...] = ()
    connect: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    shared: bool = False
    partition: int = 0
    hwm: int = 1_000
    message_bytes_max: int = 1024 * 1024
    curve: CurveConfig | None = None


@dataclass(frozen=True)
class ZeromqOutConfig:
    """A PUB or PUSH socket that sends the records of a topic."""

    name: str
    type: str
    topic: str
    bind: tuple[str, ...] = ()
    connect: tuple[str, ...] = ()
    numbered: bool = True
    start: str = "latest"
    hwm: int = 1_000
    curve: CurveConfig | None = None

    @property
    def group(self) -> str:
        return f"zeromq.{self.name}"


@dataclass(frozen=True)
class BridgeConfig:
    """A file, checked."""

    name: str
    broker: str
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    metrics: str | None = None
    publish_status: bool = True
    http: HttpConfig | None = None
    webhooks: tuple[WebhookConfig, ...] = ()
    statsd: tuple[StatsdConfig, ...] = ()
    mold_in: tuple[MoldInConfig, ...] = ()
    mold_out: tuple[MoldOutConfig, ...] = ()
    zeromq_in: tuple[ZeromqInConfig, ...] = ()
    zeromq_out: tuple[ZeromqOutConfig, ...] = ()

    @property
    def client_settings(self) -> dict[str, str]:
        """The settings of a Kafka client, with librdkafka's names."""
        return {**self.kafka, "bootstrap.servers": self.broker}


def load_config(path: Path, broker: str | None = None) -> BridgeConfig:
    """The bridge of a file; `broker` replaces that of the file. Raises `ConfigError`."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    return parse_config(given if broker is None else given | {"broker": broker}, path.parent)


def parse_config(given: Mapping[str, Any], directory: Path = Path()) -> BridgeConfig:
    """The bridge that a parsed file declares; paths in it are relative to `directory`."""
    refuse_unknown(given, _TOP, "bridge")
    kafka, broker = _connection(given, directory)
    name = text_of(given, "name", "bridge", default="bridge")
    if not NAME.fullmatch(name):
        raise ConfigError(f"bridge: name is {name!r}; use letters, digits, '.', '_' and '-'")
    mold = table_of(given.get("mold", {}), "[mold]")
    refuse_unknown(mold, ("in", "out"), "[mold]")
    zeromq = table_of(given.get("zeromq", {}), "[zeromq]")
    refuse_unknown(zeromq, ("in", "out"), "[zeromq]")
    metrics = given.get("metrics")
    if metrics is not None:
        parse_address(text_of(given, "metrics", "bridge"))
    found = BridgeConfig(
        name=name,
        broker=broker,
        kafka=kafka,
        metrics=metrics,
        publish_status=flag_of(given, "publish_status", "bridge", default=True),
        http=_http(given, directory),
        webhooks=tuple(_webhook(*it, directory) for it in tables_of(given, "webhooks")),
        statsd=tuple(_statsd(*it) for it in tables_of(given, "statsd")),
        mold_in=tuple(_mold_in(*it) for it in tables_of(mold, "in", "mold.")),
        mold_out=tuple(_mold_out(*it) for it in tables_of(mold, "out", "mold.")),
        zeromq_in=tuple(_zeromq_in(*it, directory) for it in tables_of(zeromq, "in", "zeromq.")),
        zeromq_out=tuple(_zeromq_out(*it, directory) for it in tables_of(zeromq, "out", "zeromq.")),
    )
    parts = (
        found.webhooks, found.statsd, found.mold_in, found.mold_out, found.zeromq_in,
        found.zeromq_out,
    )  # fmt: skip
    if found.http is None and not any(parts):
        raise ConfigError(
            "bridge: nothing to do; give [http], [webhooks.NAME], [statsd.NAME], [mold.in.NAME], "
            "[mold.out.NAME], [zeromq.in.NAME] or [zeromq.out.NAME]"
        )
    return found


def _connection(given: Mapping[str, Any], directory: Path) -> tuple[dict[str, str], str]:
    kafka: dict[str, str] = {}
    broker = given.get("broker")
    if "client_config" in given:
        file = directory / Path(text_of(given, "client_config", "bridge")).expanduser()
        kafka, servers = read_connection(file)
        broker = broker or servers
    if not isinstance(broker, str) or not broker:
        raise ConfigError("bridge: broker must be given, as HOST:PORT,...")
    return kafka, broker


def _http(given: Mapping[str, Any], directory: Path) -> HttpConfig | None:
    hooks = {name: _hook(name, it, directory) for name, it in tables_of(given, "hooks")}
    table = given.get("http")
    if table is None:
        if hooks:
            raise ConfigError("bridge: hooks need [http] with listen")
        return None
    where = "[http]"
    known = ("listen", "produce", "read", "token", "origins", "body_bytes_max", "streams_max")
    table = table_of(table, where)
    refuse_unknown(table, known, where)
    listen = text_of(table, "listen", where)
    host, _ = parse_address(listen)
    token = secret_of(table["token"], f"{where}: token", directory) if "token" in table else None
    found = HttpConfig(
        listen=listen,
        produce=texts_of(table, "produce", where),
        read=texts_of(table, "read", where),
        token=token,
        origins=texts_of(table, "origins", where),
        body_bytes_max=int(number_of(table, "body_bytes_max", where, BODY_BYTES_MAX, 1)),
        streams_max=int(number_of(table, "streams_max", where, STREAMS_MAX, 0)),
        hooks=hooks,
    )
    if token is None and (found.produce or found.read) and not is_loopback(host):
        raise ConfigError(f"{where}: {listen} can be reached from outside; give a token")
    return found


def _hook(name: str, table: Mapping[str, Any], directory: Path) -> HookConfig:
    where = f"[hooks.{name}]"
    refuse_unknown(table, ("topic", "signature", "secrets", "headers", "exact"), where)
    kind = one_of(table, "signature", where, tuple(VERIFIERS), "standard")
    keys = _keys(table, where, directory, kind)
    headers = tuple(it.lower() for it in texts_of(table, "headers", where))
    exact = flag_of(table, "exact", where, default=False)
    return HookConfig(topic_of(table, where), kind, keys, headers, exact)


def _webhook(name: str, table: Mapping[str, Any], directory: Path) -> WebhookConfig:
    where = f"[webhooks.{name}]"
    known = (
        "topics", "url", "secrets", "allow", "format", "timeout_seconds", "parallel", "attempts",
        "backoff_seconds", "dead_letters", "start",
    )  # fmt: skip
    refuse_unknown(table, known, where)
    topics = texts_of(table, "topics", where)
    if not topics:
        raise ConfigError(f"{where}: topics must name at least one topic")
    return WebhookConfig(
        name=name,
        topics=topics,
        url=_url(table, where),
        keys=_keys(table, where, directory, "standard"),
        allow=_networks(table, where),
        format=one_of(table, "format", where, FORMATS, "value"),
        timeout_seconds=number_of(table, "timeout_seconds", where, 15.0, 0.1, 25.0),
        parallel=int(number_of(table, "parallel", where, 4, 1, 64)),
        attempts=int(number_of(table, "attempts", where, 10, 2, 10)),
        backoff_seconds=number_of(table, "backoff_seconds", where, 300.0, 0, 86_400),
        dead_letters=text_of(table, "dead_letters", where, default=f"dlq.webhooks.{name}"),
        start=one_of(table, "start", where, ("earliest", "latest"), "latest"),
    )


def _url(table: Mapping[str, Any], where: str) -> str:
    url = text_of(table, "url", where)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise ConfigError(f"{where}: url must be https://HOST/PATH, without a user")
    if parts.scheme == "http" and not _networks(table, where):
        raise ConfigError(f"{where}: http is for addresses in `allow` only; use https")
    return url


def _networks(table: Mapping[str, Any], where: str) -> tuple[Network, ...]:
    try:
        return tuple(ipaddress.ip_network(it) for it in texts_of(table, "allow", where))
    except ValueError as error:
        raise ConfigError(f"{where}: allow: {error}") from None


def _statsd(name: str, table: Mapping[str, Any]) -> StatsdConfig:
    where = f"[statsd.{name}]"
    refuse_unknown(table, ("listen", "topic", "interval_seconds", "buffer_bytes"), where)
    listen = text_of(table, "listen", where)
    parse_address(listen)
    return StatsdConfig(
        name,
        listen,
        topic_of(table, where),
        number_of(table, "interval_seconds", where, 10.0, 0, 3600),
        int(number_of(table, "buffer_bytes", where, STATSD_BUFFER_BYTES, 4096)),
    )


def _mold_in(name: str, table: Mapping[str, Any]) -> MoldInConfig:
    where = f"[mold.in.{name}]"
    refuse_unknown(table, ("listen", "topic", "request", "interface", "skip_empty"), where)
    request = udp_of(table, "request", where) if "request" in table else None
    return MoldInConfig(
        name,
        udp_of(table, "listen", where),
        topic_of(table, where),
        request,
        interface_of(table, where),
        flag_of(table, "skip_empty", where, default=False),
    )


def _mold_out(name: str, table: Mapping[str, Any]) -> MoldOutConfig:
    where = f"[mold.out.{name}]"
    known = ("topic", "to", "requests", "interface", "partition", "session", "start", "ttl")
    refuse_unknown(table, known, where)
    return MoldOutConfig(
        name,
        topic_of(table, where),
        udp_of(table, "to", where),
        udp_of(table, "requests", where) if "requests" in table else None,
        interface_of(table, where),
        int(number_of(table, "partition", where, 0, 0)),
        text_of(table, "session", where, default=name),
        one_of(table, "start", where, ("earliest", "latest"), "latest"),
        int(number_of(table, "ttl", where, 1, 0, 255)),
    )


def _zeromq_in(name: str, table: Mapping[str, Any], directory: Path) -> ZeromqInConfig:
    where = f"[zeromq.in.{name}]"
    known = (
        "type", "topic", "bind", "connect", "subscribe", "shared", "partition", "hwm",
        "message_bytes_max", *_CURVE,
    )  # fmt: skip
    refuse_unknown(table, known, where)
    found = ZeromqInConfig(
        name,
        one_of(table, "type", where, ("sub", "pull"), ""),
        topic_of(table, where),
        *_endpoints(table, where),
        texts_of(table, "subscribe", where),
        flag_of(table, "shared", where, default=False),
        int(number_of(table, "partition", where, 0, 0)),
        _hwm(table, where),
        int(number_of(table, "message_bytes_max", where, 1024 * 1024, 1, 16 * 1024 * 1024)),
        _curve(table, where, directory),
    )
    if found.type != "sub" and found.subscribe:
        raise ConfigError(f'{where}: subscribe is for type = "sub"')
    if found.type != "pull" and found.shared:
        raise ConfigError(f'{where}: shared is for type = "pull"; each subscriber gets everything')
    return found


def _zeromq_out(name: str, table: Mapping[str, Any], directory: Path) -> ZeromqOutConfig:
    where = f"[zeromq.out.{name}]"
    known = ("type", "topic", "bind", "connect", "numbered", "start", "hwm", *_CURVE)
    refuse_unknown(table, known, where)
    return ZeromqOutConfig(
        name,
        one_of(table, "type", where, ("pub", "push"), ""),
        topic_of(table, where),
        *_endpoints(table, where),
        flag_of(table, "numbered", where, default=True),
        one_of(table, "start", where, ("earliest", "latest"), "latest"),
        _hwm(table, where),
        _curve(table, where, directory),
    )


def _curve(table: Mapping[str, Any], where: str, directory: Path) -> CurveConfig | None:
    if not any(it in table for it in _CURVE):
        return None
    if "curve_secret" not in table:
        raise ConfigError(f"{where}: curve_secret must be given: the secret key of this socket")
    given = secret_of(table["curve_secret"], f"{where}: curve_secret", directory)
    own = _curve_key(given, f"{where}: curve_secret")
    server, clients = table.get("curve_server"), texts_of(table, "curve_clients", where)
    if (server is None) == (not clients):
        raise ConfigError(
            f"{where}: give curve_server, the public key of the other end, or curve_clients, the "
            'public keys that may connect (["*"]: all that know the key of this socket)'
        )
    if server is not None:
        return CurveConfig(own, _curve_key(server, f"{where}: curve_server"))
    if clients == ("*",):
        return CurveConfig(own)
    found = tuple(_curve_key(it, f"{where}: curve_clients") for it in clients)
    return CurveConfig(own, None, found)


def _curve_key(given: Any, where: str) -> bytes:
    if not isinstance(given, str) or not _Z85.fullmatch(given):
        raise ConfigError(f"{where}: a key is 40 characters of Z85, as zmq.curve_keypair() has it")
    return given.encode()


def _hwm(table: Mapping[str, Any], where: str) -> int:
    """0 would be "without limit" for ZeroMQ, and is refused."""
    return int(number_of(table, "hwm", where, 1_000, 1, 1_000_000))


def _endpoints(table: Mapping[str, Any], where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found = texts_of(table, "bind", where), texts_of(table, "connect", where)
    if not any(found):
        raise ConfigError(f'{where}: give bind or connect, as ["tcp://HOST:PORT"]')
    for each in (*found[0], *found[1]):
        if not _TRANSPORT.fullmatch(each):
            raise ConfigError(f"{where}: {each!r} is no tcp://HOST:PORT and no ipc://PATH")
    return found


def _keys(table: Mapping[str, Any], where: str, directory: Path, kind: str) -> tuple[bytes, ...]:
    given = table.get("secrets", [])
    if not isinstance(given, list) or (not given and kind != "none"):
        raise ConfigError(f"{where}: secrets must be a list with at least one secret")
    try:
        return tuple(key_of(kind, secret_of(it, f"{where}: secrets", directory)) for it in given)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
