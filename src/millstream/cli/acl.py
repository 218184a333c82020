"""`millstream acl`: who may do what, on any Kafka cluster with an authorizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Annotated, NamedTuple

import typer

from millstream.admin.acls import (
    create_entries,
    delete_entries,
    find_entries,
    is_host,
    parse_operation,
    possible_operations,
    principal_of,
    row_of,
    shown,
)
from millstream.cli.cluster import Cluster
from millstream.cli.failures import usage_error
from millstream.cli.options import BOOTSTRAP_DEFAULT, AsJson, BootstrapServer, ClientConfig
from millstream.cli.output import console, note, print_json, print_rows
from millstream.security.acls import (
    ANY_HOST,
    ANY_NAME,
    CLUSTER_NAME,
    AclEntry,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

app = typer.Typer(
    help="List and change access control entries: who may do what.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)

_COLUMNS = {
    "principal": "PRINCIPAL",
    "permission": "PERMISSION",
    "operation": "OPERATION",
    "type": "TYPE",
    "name": "NAME",
    "pattern": "PATTERN",
    "host": "HOST",
}
_PRODUCER = {
    ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
_CONSUMER = {
    ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE),
    ResourceType.GROUP: (Operation.READ,),
}

Topic = Annotated[list[str] | None, typer.Option(metavar="NAME", help="A topic; * is all of them.")]
Group = Annotated[list[str] | None, typer.Option(metavar="NAME", help="A group; * is all of them.")]
TransactionalId = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="A transactional id; * is all of them."),
]
OnCluster = Annotated[bool, typer.Option("--cluster", help="The cluster as a whole.")]
Operations = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="read, write, create, delete, alter, describe, all, ..."),
]


AllowPrincipal = Annotated[
    list[str] | None,
    typer.Option(metavar="USER", help="Allow it to this user: alice, or User:alice. * is all."),
]
DenyPrincipal = Annotated[
    list[str] | None,
    typer.Option(metavar="USER", help="Deny it to this user; that wins over all that allows."),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(metavar="ADDRESS", help="Allow it from this address only. Default: any."),
]
DenyHost = Annotated[
    list[str] | None,
    typer.Option(metavar="ADDRESS", help="Deny it from this address only. Default: any."),
]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="The names are prefixes of names.")]
ForProducer = Annotated[
    bool,
    typer.Option(
        "--for-producer",
        help="What a producer needs: write, describe and create on the topics, write and describe "
        "on the transactional ids.",
    ),
]
ForConsumer = Annotated[
    bool,
    typer.Option(
        "--for-consumer",
        help="What a consumer needs: read and describe on the topics, read on the groups.",
    ),
]


class Resource(NamedTuple):
    type: ResourceType
    name: str


@app.command()
def add(
    allow_principal: AllowPrincipal = None,
    deny_principal: DenyPrincipal = None,
    operation: Operations = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: OnCluster = False,
    prefixed: Prefixed = False,
    for_producer: ForProducer = False,
    for_consumer: ForConsumer = False,
    allow_host: AllowHost = None,
    deny_host: DenyHost = None,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Allow or deny users to do something.

    Nothing is allowed by default, except to the broker's super.users. What exists already stays as
    it is. A change is in force for the next request of every client.

    [bold]Examples[/bold]

    \b
      millstream acl add --allow-principal alice --operation read --topic orders
      millstream acl add --allow-principal billing --for-consumer --topic orders --group billing
      millstream acl add --allow-principal shop --for-producer --topic shop. --prefixed
      millstream acl add --deny-principal eve --operation all --topic '*' --deny-host 10.0.0.9
    """
    _check_hosts("--allow", allow_principal, allow_host)
    _check_hosts("--deny", deny_principal, deny_host)
    users = [
        *((principal_of(user), Permission.ALLOW, allow_host) for user in allow_principal or ()),
        *((principal_of(user), Permission.DENY, deny_host) for user in deny_principal or ()),
    ]
    if not users:
        raise usage_error("give --allow-principal or --deny-principal")
    resources = _resources(topic, group, transactional_id, cluster)
    if not resources:
        raise usage_error("give --topic, --group, --transactional-id or --cluster")
    if prefixed and any(resource.name == ANY_NAME for resource in resources):
        raise usage_error("--prefixed: no name begins with *; leave it out, and * is all names")
    granted = list(_granted(resources, operation, for_producer, for_consumer))
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    entries = [
        AclEntry(
            *resource,
            PatternType.LITERAL if resource.type is ResourceType.CLUSTER else pattern,
            principal,
            host,
            allowed,
            permission,
        )
        for (principal, permission, hosts), (resource, allowed) in product(users, granted)
        for host in hosts or (ANY_HOST,)
    ]
    create_entries(Cluster.connect(bootstrap_server, client_config).protocol, entries)
    if as_json:
        print_json([row_of(entry) for entry in entries])
    else:
        _print(entries)


@app.command("list")
def list_entries(
    principal: Annotated[
        str | None, typer.Option(metavar="USER", help="Only entries of this user.")
    ] = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: OnCluster = False,
    matching: Annotated[
        bool,
        typer.Option(
            "--matching", help="All that apply to these names: also prefixes, and * for all."
        ),
    ] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """List access control entries.

    [bold]Examples[/bold]

    \b
      millstream acl list
      millstream acl list --principal alice
      millstream acl list --topic orders --matching
    """
    resources = _resources(topic, group, transactional_id, cluster)
    filters = list(_filters(resources, [principal] if principal else [], None, matching=matching))
    found = find_entries(Cluster.connect(bootstrap_server, client_config).protocol, filters)
    if as_json:
        print_json([row_of(entry) for entry in found])
    else:
        _print(found)


@app.command()
def remove(
    principal: Annotated[
        list[str] | None, typer.Option(metavar="USER", help="Only entries of this user.")
    ] = None,
    operation: Operations = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: OnCluster = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Remove access control entries: those that match all options that are given.

    [bold]Examples[/bold]

    \b
      millstream acl remove --principal alice
      millstream acl remove --principal alice --operation write --topic orders
      millstream acl remove --topic orders --yes
    """
    resources = _resources(topic, group, transactional_id, cluster)
    if not (principal or operation or resources):
        raise usage_error("say what to remove: --principal, --operation, --topic, --group, ...")
    connected = Cluster.connect(bootstrap_server, client_config).protocol
    found = find_entries(connected, list(_filters(resources, principal or (), operation)))
    if found and not yes:
        _print(found)
        typer.confirm(f"remove these {len(found)} entries?", abort=True)
    delete_entries(connected, found)
    if as_json:
        print_json([row_of(entry) for entry in found])
    else:
        console().print(f"removed {len(found)} entries" if found else "no entry matches")


# What the options mean


def _check_hosts(
    option: str, principals: Sequence[str] | None, hosts: Sequence[str] | None
) -> None:
    """An entry with a host that no client can have would do nothing, and nobody would notice."""
    if hosts and not principals:
        raise usage_error(f"{option}-host is about the users of {option}-principal: give that too")
    for host in hosts or ():
        if not is_host(host):
            raise usage_error(
                f"{option}-host {host}: it is one address, such as 10.0.0.9, or *; entries know "
                "neither networks nor names of hosts"
            )


def _resources(
    topics: Sequence[str] | None,
    groups: Sequence[str] | None,
    transactional_ids: Sequence[str] | None,
    cluster: bool,
) -> list[Resource]:
    found = [
        *(Resource(ResourceType.TOPIC, name) for name in topics or ()),
        *(Resource(ResourceType.GROUP, name) for name in groups or ()),
        *(Resource(ResourceType.TRANSACTIONAL_ID, name) for name in transactional_ids or ()),
    ]
    if not all(resource.name for resource in found):
        raise usage_error("the name of the resource is empty; * is all of them")
    return [*found, Resource(ResourceType.CLUSTER, CLUSTER_NAME)] if cluster else found


def _granted(
    resources: Iterable[Resource],
    names: Sequence[str] | None,
    for_producer: bool,
    for_consumer: bool,
) -> Iterator[tuple[Resource, Operation]]:
    """Each resource with each operation on it."""
    if not (names or for_producer or for_consumer):
        raise usage_error("give --operation, --for-producer or --for-consumer")
    operations = [_operation(name) for name in names or ()]
    for resource in resources:
        wanted = dict.fromkeys(operations)
        if for_producer:
            wanted |= dict.fromkeys(_PRODUCER.get(resource.type, ()))
        if for_consumer:
            wanted |= dict.fromkeys(_CONSUMER.get(resource.type, ()))
        if not wanted:
            raise usage_error(
                f"{_options(for_producer, for_consumer)} needs nothing on a "
                f"{shown(resource.type)}: give --operation for that"
            )
        possible = possible_operations(resource.type)
        for operation in wanted:
            if operation not in possible:
                raise usage_error(
                    f"--operation {shown(operation)}: on a {shown(resource.type)} there are "
                    f"{', '.join(map(shown, possible))}"
                )
            yield resource, operation


def _options(for_producer: bool, for_consumer: bool) -> str:
    options = ("--for-producer",) * for_producer + ("--for-consumer",) * for_consumer
    return " and ".join(options)


def _operation(name: str) -> Operation:
    found = parse_operation(name)
    if found is None:
        known = ", ".join(shown(it) for it in Operation if it >= Operation.ALL)
        raise usage_error(f"--operation {name}: it is one of {known}")
    return found


def _filters(
    resources: Sequence[Resource],
    principals: Sequence[str],
    operations: Sequence[str] | None,
    *,
    matching: bool = False,
) -> Iterator[AclFilter]:
    pattern = PatternType.MATCH if matching else PatternType.ANY
    some: Iterable[Resource | None] = resources or [None]
    users: Iterable[str | None] = principals or [None]
    names: Iterable[str | None] = operations or [None]
    for resource, user, name in product(some, users, names):
        yield AclFilter(
            resource_type=ResourceType.ANY if resource is None else resource.type,
            resource_name=None if resource is None else resource.name,
            pattern_type=pattern if resource is not None else PatternType.ANY,
            principal=None if user is None else principal_of(user),
            operation=Operation.ANY if name is None else _operation(name),
        )


# Output


def _print(entries: Sequence[AclEntry]) -> None:
    print_rows([row_of(entry) for entry in entries], _COLUMNS, empty="no access control entries")
    if any(entry.permission == Permission.DENY for entry in entries):
        note("an entry that denies wins over all that allow")
