"""`millstream quota`: limits for the clients of any Kafka cluster."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from millstream.admin.quotas import (
    CLIENT_ID,
    DEFAULT_NAME,
    IP,
    USER,
    Entity,
    alter_quotas,
    describe_entity,
    describe_quotas,
    parse_rate,
    readable,
)
from millstream.cli.cluster import Cluster
from millstream.cli.failures import CommandFailed, usage_error
from millstream.cli.options import BOOTSTRAP_DEFAULT, AsJson, BootstrapServer, ClientConfig
from millstream.cli.output import console, print_json, print_rows

app = typer.Typer(
    help="Set, list and remove quotas of users, client ids and addresses.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)

_WHO, _WHAT = "For whom", "Quotas"
User = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help="A user.", rich_help_panel=_WHO)
]
UserDefault = Annotated[
    bool,
    typer.Option(
        "--user-default", help="Each user that has no quota of its own.", rich_help_panel=_WHO
    ),
]
ClientId = Annotated[
    str | None,
    typer.Option("--client-id", metavar="ID", help="A client id.", rich_help_panel=_WHO),
]
ClientIdDefault = Annotated[
    bool,
    typer.Option(
        "--client-id-default",
        help="Each client id that has no quota of its own.",
        rich_help_panel=_WHO,
    ),
]
Ip = Annotated[
    str | None, typer.Option("--ip", metavar="ADDRESS", help="An address.", rich_help_panel=_WHO)
]
IpDefault = Annotated[
    bool,
    typer.Option(
        "--ip-default", help="Each address that has no quota of its own.", rich_help_panel=_WHO
    ),
]

ProducerByteRate = Annotated[
    str | None,
    typer.Option(metavar="RATE", help="Bytes produced per second.", rich_help_panel=_WHAT),
]
ConsumerByteRate = Annotated[
    str | None,
    typer.Option(metavar="RATE", help="Bytes fetched per second.", rich_help_panel=_WHAT),
]


@app.command("set")
def set_quota(
    user: User = None,
    user_default: UserDefault = False,
    client_id: ClientId = None,
    client_id_default: ClientIdDefault = False,
    ip: Ip = None,
    ip_default: IpDefault = False,
    producer_byte_rate: ProducerByteRate = None,
    consumer_byte_rate: ConsumerByteRate = None,
    request_percentage: Annotated[
        float | None,
        typer.Option(
            metavar="PERCENT",
            help="Time of requests, in percent of one thread.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    controller_mutation_rate: Annotated[
        float | None,
        typer.Option(
            metavar="RATE",
            help="Partitions created and deleted per second.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    connection_creation_rate: Annotated[
        int | None,
        typer.Option(
            metavar="RATE",
            help="Connections per second; of an address.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Set quotas. They apply at once, also to open connections.

    A client that exceeds one is slowed down and gets no error, except that more partitions are
    refused for a while. The most specific quota counts: user and client id before user, user before
    client id, and each before its default. Quotas hold per broker. RATE in bytes can have a unit:
    1MB is 1,000,000 bytes per second, 1MiB is 1,048,576.

    [bold]Examples[/bold]

    \b
      millstream quota set --user alice --producer-byte-rate 1MB --consumer-byte-rate 2MB
      millstream quota set --user alice --client-id batch-job --consumer-byte-rate 512kB
      millstream quota set --client-id-default --request-percentage 50
      millstream quota set --user-default --controller-mutation-rate 5
      millstream quota set --ip 10.0.0.7 --connection-creation-rate 10
    """
    entity = _one_entity(user, user_default, client_id, client_id_default, ip, ip_default)
    given = {
        "producer_byte_rate": _rate("--producer-byte-rate", producer_byte_rate),
        "consumer_byte_rate": _rate("--consumer-byte-rate", consumer_byte_rate),
        "request_percentage": request_percentage,
        "controller_mutation_rate": controller_mutation_rate,
        "connection_creation_rate": connection_creation_rate,
    }
    quotas = {key: float(value) for key, value in given.items() if value is not None}
    if not quotas:
        raise usage_error("no quota given: use --producer-byte-rate RATE or another one of --help")
    alter_quotas(Cluster.connect(bootstrap_server, client_config).protocol, entity, quotas)
    shown = ", ".join(f"{key} {readable(key, value)}" for key, value in quotas.items())
    console().print(f"set for {describe_entity(entity)}: {shown}", markup=False)


@app.command("list")
def list_quotas(
    user: User = None,
    user_default: UserDefault = False,
    client_id: ClientId = None,
    client_id_default: ClientIdDefault = False,
    ip: Ip = None,
    ip_default: IpDefault = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """List quotas: all, or those that name a user, a client id or an address.

    [bold]Examples[/bold]

    \b
      millstream quota list
      millstream quota list --user alice
      millstream quota list --json | jq '.[] | select(.entity.user == "alice") | .quotas'
    """
    wanted = _entity(user, user_default, client_id, client_id_default, ip, ip_default)
    found = describe_quotas(Cluster.connect(bootstrap_server, client_config).protocol, wanted)
    if as_json:
        print_json([{"entity": entity, "quotas": quotas} for entity, quotas in found])
        return
    rows = [
        {name: DEFAULT_NAME if value is None else value for name, value in entity.items()}
        | {key: readable(key, value) for key, value in quotas.items()}
        for entity, quotas in found
    ]
    columns = {
        USER: "USER",
        CLIENT_ID: "CLIENT ID",
        IP: "ADDRESS",
        "producer_byte_rate": "PRODUCE",
        "consumer_byte_rate": "FETCH",
        "request_percentage": "REQUESTS",
        "controller_mutation_rate": "MUTATIONS",
        "connection_creation_rate": "CONNECTIONS",
    }
    used = {key: title for key, title in columns.items() if any(key in row for row in rows)}
    print_rows(rows, used, empty="no quotas")


@app.command()
def remove(
    user: User = None,
    user_default: UserDefault = False,
    client_id: ClientId = None,
    client_id_default: ClientIdDefault = False,
    ip: Ip = None,
    ip_default: IpDefault = False,
    producer_byte_rate: Annotated[bool, typer.Option("--producer-byte-rate")] = False,
    consumer_byte_rate: Annotated[bool, typer.Option("--consumer-byte-rate")] = False,
    request_percentage: Annotated[bool, typer.Option("--request-percentage")] = False,
    controller_mutation_rate: Annotated[bool, typer.Option("--controller-mutation-rate")] = False,
    connection_creation_rate: Annotated[bool, typer.Option("--connection-creation-rate")] = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Remove quotas: all of a user, client id or address, or only those named.

    Clients that are throttled go on at once.

    [bold]Examples[/bold]

    \b
      millstream quota remove --user alice
      millstream quota remove --user alice --consumer-byte-rate
      millstream quota remove --client-id-default
    """
    entity = _one_entity(user, user_default, client_id, client_id_default, ip, ip_default)
    named = {
        "producer_byte_rate": producer_byte_rate,
        "consumer_byte_rate": consumer_byte_rate,
        "request_percentage": request_percentage,
        "controller_mutation_rate": controller_mutation_rate,
        "connection_creation_rate": connection_creation_rate,
    }
    cluster = Cluster.connect(bootstrap_server, client_config).protocol
    known = describe_quotas(cluster, entity)
    existing = dict(next((it for it in known if it[0] == entity), ({}, {}))[1])
    chosen = [key for key, is_named in named.items() if is_named] or list(existing)
    absent = [key for key in chosen if key not in existing]
    if absent or not chosen:
        what = f"quota {absent[0]}" if absent else "quota"
        raise CommandFailed(
            f"there is no {what} for {describe_entity(entity)}; see `millstream quota list`"
        )
    alter_quotas(cluster, entity, dict.fromkeys(chosen))
    console().print(f"removed for {describe_entity(entity)}: {', '.join(chosen)}", markup=False)


def _rate(option: str, text: str | None) -> float | None:
    return None if text is None else parse_rate(option, text)


def _entity(
    user: str | None,
    user_default: bool,
    client_id: str | None,
    client_id_default: bool,
    ip: str | None,
    ip_default: bool,
) -> Entity:
    entity: Entity = {}
    for kind, name, is_default in (
        (USER, user, user_default),
        (CLIENT_ID, client_id, client_id_default),
        (IP, ip, ip_default),
    ):
        if name is not None and is_default:
            raise usage_error(f"give --{kind} or --{kind}-default, not both")
        if name is not None or is_default:
            entity[kind] = name
    if IP in entity and len(entity) > 1:
        raise usage_error(
            "an address has quotas of its own: use --ip without --user and --client-id"
        )
    return entity


def _one_entity(*given: Any) -> Entity:
    entity = _entity(*given)
    if not entity:
        raise usage_error("for whom? use --user, --client-id, --ip, or the default of one of them")
    return entity
