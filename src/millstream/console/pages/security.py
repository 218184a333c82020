"""`/security`: users of SCRAM, and access control entries."""

from __future__ import annotations

from typing import TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

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
from millstream.admin.errors import OperationFailed
from millstream.admin.users import delete_user, known_users, set_password
from millstream.client.cluster import Cluster
from millstream.console.actions import (
    Done,
    Form,
    Refused,
    act,
    check_typed,
    command,
    finish,
    post,
)
from millstream.console.answers import page
from millstream.console.lists import Listed, Wanted, listed
from millstream.console.paths import link
from millstream.console.sessions import in_cluster
from millstream.errors import ApiError, ErrorCode
from millstream.models import dataclass
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

TYPES = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.TRANSACTIONAL_ID,
    ResourceType.CLUSTER,
)
PASSWORD_CHARACTERS_MAX = 1_000

Number = TypeVar("Number", ResourceType, PatternType, Permission)


@dataclass(frozen=True)
class UserRow:
    name: str
    mechanisms: dict[str, int]  # iterations by name


@dataclass(frozen=True)
class Entry:
    """One access control entry, in words."""

    principal: str
    permission: str
    operation: str
    type: str
    name: str
    pattern: str
    host: str


@dataclass(frozen=True)
class UsersModel:
    users: Listed[UserRow]


@dataclass(frozen=True)
class UserModel:
    name: str
    mechanisms: dict[str, int]
    entries: list[Entry]
    problem: str  # why the entries are not shown


@dataclass(frozen=True)
class EntriesModel:
    entries: Listed[Entry]
    problem: str
    operations: list[str]
    types: list[str]


def load_users(cluster: Cluster, wanted: Wanted) -> UsersModel:
    rows = [UserRow(name, mechanisms) for name, mechanisms in known_users(cluster).items()]
    return UsersModel(
        listed(
            rows,
            wanted,
            text=lambda row: row.name,
            keys={"name": lambda row: row.name.casefold()},
            default="name",
        )
    )


def load_user(cluster: Cluster, name: str) -> UserModel:
    mechanisms = known_users(cluster).get(name, {})
    entries, problem = _entries(cluster, AclFilter(principal=principal_of(name)))
    if not mechanisms and not entries:
        raise HTTPException(404, f"there is no user {name!r} of SCRAM, and no entry names it")
    return UserModel(name, mechanisms, entries, problem)


def load_entries(cluster: Cluster, wanted: Wanted) -> EntriesModel:
    entries, problem = _entries(cluster, AclFilter())
    found = listed(
        entries,
        wanted,
        text=lambda it: f"{it.principal} {it.permission} {it.operation} {it.type} {it.name}",
        keys={
            "principal": lambda it: (it.principal, it.type, it.name, it.operation),
            "resource": lambda it: (it.type, it.name, it.principal, it.operation),
            "operation": lambda it: (it.operation, it.principal),
            "permission": lambda it: (it.permission, it.principal),
        },
        default="principal",
    )
    operations = [shown(it) for it in Operation if it >= Operation.ALL]
    return EntriesModel(found, problem, operations, [shown(it) for it in TYPES])


def _entries(cluster: Cluster, wanted: AclFilter) -> tuple[list[Entry], str]:
    """The entries, or why there are none: clusters without an authorizer keep none."""
    try:
        found = find_entries(cluster, [wanted])
    except OperationFailed as failed:
        return [], str(failed)
    except ApiError as error:
        if error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        return [], str(error)
    return [Entry(**row_of(entry)) for entry in found], ""


# Pages


async def show_users(request: Request) -> Response:
    wanted = Wanted.of(request.query_params)
    return await page(request, "security.html", lambda it: load_users(it, wanted))


async def show_user(request: Request) -> Response:
    name = request.path_params["name"]
    return await page(request, "security_user.html", lambda it: load_user(it, name))


async def show_entries(request: Request) -> Response:
    wanted = Wanted.of(request.query_params)
    return await page(request, "security_acls.html", lambda it: load_entries(it, wanted))


# Actions


async def create_user(request: Request, form: Form) -> Response:
    name, password = form.need("user", "The name of the user"), _password(form)

    def create(cluster: Cluster) -> None:
        if name in known_users(cluster):
            raise Refused(f"user {name!r} exists; open it to give it a new password")
        set_password(cluster, name, password)

    return await act(
        request,
        create,
        done=f"User {name} is created.",
        command=command(request, "user", "create", name),
        back=link("security", "users", name),
    )


async def change_password(request: Request, form: Form) -> Response:
    name, password = request.path_params["name"], _password(form)

    def change(cluster: Cluster) -> None:
        existing = known_users(cluster).get(name)
        if existing is None:
            raise HTTPException(404, f"there is no user {name!r}")
        set_password(cluster, name, password, existing=existing)

    return await act(
        request,
        change,
        done=f"User {name} has a new password. Open connections stay open.",
        command=command(request, "user", "create", name, "--replace"),
        back=link("security", "users", name),
    )


async def remove_user(request: Request, form: Form) -> Response:
    name = request.path_params["name"]
    check_typed(form, name)

    def remove(cluster: Cluster) -> None:
        existing = known_users(cluster).get(name)
        if existing is None:
            raise HTTPException(404, f"there is no user {name!r}")
        delete_user(cluster, name, existing)

    return await act(
        request,
        remove,
        done=f"User {name} is deleted. Entries that name it stay.",
        command=command(request, "user", "delete", name),
        back=link("security"),
    )


async def add_entry(request: Request, form: Form) -> Response:
    entry = entry_of(form)
    return await act(
        request,
        create_entries,
        [entry],
        done=f"Added: {describe(entry)}.",
        command=command(request, "acl", "add", *add_options(entry)),
        back=link("security", "acls"),
    )


async def remove_entry(request: Request, form: Form) -> Response:
    entry = entry_of(form)

    def remove(cluster: Cluster) -> int:
        alike = find_entries(cluster, [entry_filter(entry)])
        if entry not in alike:
            raise HTTPException(404, "there is no such entry any more")
        delete_entries(cluster, [entry])
        return len(alike)

    alike = await in_cluster(request, remove)
    # The command has no options for hosts and patterns: it may mean more entries than this one.
    line = command(request, "acl", "remove", *remove_options(entry)) if alike == 1 else ""
    return finish(request, Done(f"Removed: {describe(entry)}.", line), link("security", "acls"))


def _password(form: Form) -> str:
    password = form.text("password")
    if not password:
        raise Refused("The password is missing")
    if len(password) > PASSWORD_CHARACTERS_MAX or "\n" in password:
        raise Refused(f"The password has one line of at most {PASSWORD_CHARACTERS_MAX} characters")
    return password


def entry_of(form: Form) -> AclEntry:
    """The entry of a form; raises `Refused` for one that would do nothing."""
    type_ = _number(ResourceType, form.get("type"), "The type")
    operation = parse_operation(form.get("operation"))
    if type_ not in TYPES:
        raise Refused(f"The type is one of {', '.join(map(shown, TYPES))}")
    if operation is None or operation not in possible_operations(type_):
        possible = ", ".join(map(shown, possible_operations(type_)))
        raise Refused(f"The operation on a {shown(type_)} is one of {possible}")
    name = form.text("name").strip()
    pattern = _number(PatternType, form.get("pattern", "literal"), "The pattern")
    if type_ is ResourceType.CLUSTER:
        name, pattern = CLUSTER_NAME, PatternType.LITERAL
    if not name:
        raise Refused("The name of the resource is missing; * is all of them")
    if pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise Refused("The pattern is literal or prefixed")
    if pattern is PatternType.PREFIXED and name == ANY_NAME:
        raise Refused("No name begins with *; with literal, * is all names")
    host = form.get("host", ANY_HOST)
    if not is_host(host):
        raise Refused("The host is one address, such as 10.0.0.9, or * for all")
    permission = _number(Permission, form.get("permission", "allow"), "The permission")
    if permission not in (Permission.ALLOW, Permission.DENY):
        raise Refused("The permission is allow or deny")
    principal = principal_of(form.need("principal", "The user"))
    return AclEntry(type_, name, pattern, principal, host, operation, permission)


def _number(numbers: type[Number], text: str, what: str) -> Number:
    for number in numbers:
        if shown(number) == text.lower():
            return number
    raise Refused(f"{what} {text!r} does not exist")


def entry_filter(entry: AclEntry) -> AclFilter:
    """What `acl remove` removes with the options of this entry."""
    return AclFilter(
        resource_type=entry.resource_type,
        resource_name=entry.resource_name,
        principal=entry.principal,
        operation=entry.operation,
    )


def describe(entry: AclEntry) -> str:
    row = row_of(entry)
    prefix = "names that begin with " if row["pattern"] == "prefixed" else ""
    where = "" if row["host"] == ANY_HOST else f" from {row['host']}"
    verb = "may" if row["permission"] == "allow" else "may not"
    resource = f"{row['type']} {prefix}{row['name']}"
    return f"{row['principal']} {verb} {row['operation']} on {resource}{where}"


def _resource_options(entry: AclEntry) -> list[str]:
    if entry.resource_type == ResourceType.CLUSTER:
        return ["--cluster"]
    return [f"--{row_of(entry)['type']}", entry.resource_name]


def add_options(entry: AclEntry) -> list[str]:
    row = row_of(entry)
    options = [f"--{row['permission']}-principal", entry.principal, "--operation", row["operation"]]
    options += _resource_options(entry)
    if row["pattern"] == "prefixed":
        options.append("--prefixed")
    return (
        options if entry.host == ANY_HOST else [*options, f"--{row['permission']}-host", entry.host]
    )


def remove_options(entry: AclEntry) -> list[str]:
    options = ["--principal", entry.principal, "--operation", row_of(entry)["operation"]]
    return [*options, *_resource_options(entry), "--yes"]


ROUTES = [
    Route("/security", show_users),
    post("/security/users", create_user),
    Route("/security/users/{name:name}", show_user),
    post("/security/users/{name:name}/password", change_password),
    post("/security/users/{name:name}/delete", remove_user),
    Route("/security/acls", show_entries),
    post("/security/acls", add_entry),
    post("/security/acls/remove", remove_entry),
]
