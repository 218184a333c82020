"""`millstream user`: users that log in with SCRAM, of any Kafka cluster.

A password is never an argument, where other users of the machine could see it: it comes from a
prompt, a file or stdin, or is generated.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from millstream.admin.users import delete_user, known_users, set_password
from millstream.cli.cluster import Cluster, suggestion
from millstream.cli.failures import CommandFailed, usage_error
from millstream.cli.options import BOOTSTRAP_DEFAULT, AsJson, BootstrapServer, ClientConfig
from millstream.cli.output import console, note, print_json, print_rows
from millstream.security.scram import (
    BY_NAME,
    ITERATIONS_DEFAULT,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
)

app = typer.Typer(
    help="Create, list and delete users that log in with SCRAM.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)

GENERATED_BYTES = 24  # 32 characters
STDIN = "-"


@app.command()
def create(
    user: Annotated[str, typer.Argument(metavar="USER")],
    password_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Read the password from this file; - is stdin. Default: a prompt."
        ),
    ] = None,
    generate: Annotated[
        bool, typer.Option("--generate", help="Generate a password, and print it once.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Give an existing user a new password.")
    ] = False,
    mechanism: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="SCRAM-SHA-256 or SCRAM-SHA-512. Default: both."),
    ] = None,
    iterations: Annotated[
        int,
        typer.Option(
            min=ITERATIONS_MIN, max=ITERATIONS_MAX, help="More make guessing and logging in slower."
        ),
    ] = ITERATIONS_DEFAULT,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Create a user, or give one a new password.

    The user can log in at once. What it may do is up to access control (`millstream acl`).
    Connections that are open stay open until they have to authenticate again.

    [bold]Examples[/bold]

    \b
      millstream user create alice
      millstream user create billing --generate
      millstream user create billing --password-file /run/secrets/billing
      pass show kafka/alice | millstream user create alice --password-file - --replace
    """
    mechanisms = _checked_mechanisms(mechanism or list(BY_NAME))
    if generate and password_file is not None:
        raise usage_error("give --generate or --password-file, not both")
    cluster = Cluster.connect(bootstrap_server, client_config).protocol
    existing = known_users(cluster).get(user, {})
    if existing and not replace:
        raise CommandFailed(f"user {user!r} exists; --replace gives it a new password")
    password = secrets.token_urlsafe(GENERATED_BYTES) if generate else _read_password(password_file)
    set_password(
        cluster,
        user,
        password,
        mechanisms=mechanisms,
        iterations=iterations,
        existing=existing,
    )
    if as_json:
        shown = {"user": user, "mechanisms": dict.fromkeys(mechanisms, iterations)}
        print_json(shown | ({"password": password} if generate else {}))
        return
    what = "gave a new password to" if existing else "created"
    console().print(f"{what} {user} ({', '.join(mechanisms)})", markup=False)
    if generate:
        note("the password, which is not shown again:")
        console().print(password, markup=False)


@app.command("list")
def list_users(
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """List users of SCRAM. Users of PLAIN, certificates and tokens are not kept by the cluster.

    [bold]Examples[/bold]

    \b
      millstream user list
      millstream user list --json | jq -r '.[].user'
    """
    cluster = Cluster.connect(bootstrap_server, client_config).protocol
    found = sorted(known_users(cluster).items())
    if as_json:
        print_json([{"user": user, "mechanisms": mechanisms} for user, mechanisms in found])
        return
    rows = [
        {"user": user, "mechanism": name, "iterations": count}
        for user, mechanisms in found
        for name, count in mechanisms.items()
    ]
    columns = {"user": "USER", "mechanism": "MECHANISM", "iterations": "ITERATIONS"}
    print_rows(rows, columns, empty="no users yet")


@app.command()
def delete(
    users: Annotated[list[str], typer.Argument(metavar="USER...")],
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = BOOTSTRAP_DEFAULT,
    client_config: ClientConfig = None,
) -> None:
    """Delete users: they cannot log in again.

    Connections that are open stay open until they have to authenticate again
    (connections.max.reauth.ms). Access control lists that name the users stay.

    [bold]Examples[/bold]

    \b
      millstream user delete alice
      millstream user delete alice bob
    """
    cluster = Cluster.connect(bootstrap_server, client_config).protocol
    known = known_users(cluster)
    for user in users:
        if user not in known:
            raise CommandFailed(f"there is no user {user!r}{suggestion(user, known)}")
    for user in dict.fromkeys(users):
        delete_user(cluster, user, known[user])
        if not as_json:
            console().print(f"deleted {user}", markup=False)
    if as_json:
        print_json({"deleted": list(dict.fromkeys(users))})


def _checked_mechanisms(names: Iterable[str]) -> list[str]:
    mechanisms = list(dict.fromkeys(name.upper() for name in names))
    for name in mechanisms:
        if name not in BY_NAME:
            raise usage_error(f"--mechanism {name}: it is one of {', '.join(BY_NAME)}")
    return mechanisms


def _read_password(password_file: str | None) -> str:
    """Without the line's end. Raises `CommandFailed`."""
    if password_file is None:
        if not sys.stdin.isatty():
            raise usage_error(
                "no password: use --password-file FILE (- is stdin), --generate, or a terminal"
            )
        password: str = typer.prompt(
            "Password", hide_input=True, confirmation_prompt=True, err=True
        )
    elif password_file == STDIN:
        password = sys.stdin.readline()
    else:
        password = Path(password_file).read_text(encoding="utf-8")
    password = password.rstrip("\r\n")
    if not password:
        raise CommandFailed("the password is empty")
    if "\n" in password:
        raise CommandFailed("the password has several lines; write it on one")
    return password
