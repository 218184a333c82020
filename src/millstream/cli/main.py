"""The `millstream` command: finds the command group, turns errors into one line.

A group's module is imported only when one of its commands runs, so that `millstream --help` and
shell completion do not pay for Kafka clients or the broker. `COMMANDS` therefore repeats the first
line of each group's help; a test compares the two.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from millstream.cli.failures import exit_on_failure
from millstream.cli.options import BOOTSTRAP_VARIABLE, CLIENT_CONFIG_VARIABLE, hand_down
from millstream.cli.rights import with_rights


class CommandGroup(NamedTuple):
    help: str
    panel: str


RUN = "Run"
USE = "Use any Kafka cluster"
INSPECT = "Inspect files"

COMMANDS = {
    "serve": CommandGroup("Run a broker until Ctrl-C or SIGTERM.", RUN),
    "zookeeper": CommandGroup(
        "Run a ZooKeeper server until Ctrl-C, to try out a cluster on one machine.", RUN
    ),
    "run": CommandGroup("Run the pipelines of a file on Spark, until Ctrl-C.", RUN),
    "deploy": CommandGroup("Run a version of a pipeline beside the others, until Ctrl-C.", RUN),
    "demo": CommandGroup(
        "Watch a shop's pipelines, or a broker, survive kill -9 without losing a record.", RUN
    ),
    "capture": CommandGroup(
        "Capture the changes of a PostgreSQL database into topics, exactly once.", RUN
    ),
    "connect": CommandGroup(
        "Keep a database, index, cache or warehouse in step with topics, until Ctrl-C.", RUN
    ),
    "bridge": CommandGroup(
        "Bridge HTTP, webhooks, UDP and ZeroMQ to topics and back, until Ctrl-C.", RUN
    ),
    "views": CommandGroup("Serve the maintained views of pipelines over HTTP.", RUN),
    "cert": CommandGroup("Make certificates to try TLS on one machine.", RUN),
    "console": CommandGroup("Show and steer a cluster in a browser, until Ctrl-C.", RUN),
    "prepare": CommandGroup("Make pipelines start faster in this Python environment.", RUN),
    "cluster": CommandGroup(
        "Show the brokers of a cluster, its controller, and partitions that need attention.", USE
    ),
    "topic": CommandGroup("Create, list, describe, alter, move and delete topics.", USE),
    "produce": CommandGroup("Send records to a topic.", USE),
    "consume": CommandGroup("Print a topic's records, and follow it like `tail -f`.", USE),
    "query": CommandGroup("Query topics with SQL.", USE),
    "watch": CommandGroup("Print the changes of a topic that match, as they come.", USE),
    "group": CommandGroup(
        "Manage consumer and share groups: members, lag, offsets, settings.", USE
    ),
    "dlq": CommandGroup("Show, replay and purge dead letters.", USE),
    "excise": CommandGroup(
        "Remove records of a key or a predicate from a topic's history, with a receipt.", USE
    ),
    "queries": CommandGroup(
        "Add, list, remove and test standing queries, which are matched with every event.", USE
    ),
    "pipelines": CommandGroup("List running pipelines; stop and restart them.", USE),
    "bridges": CommandGroup("List running bridges: what passed, and what was lost.", USE),
    "versions": CommandGroup(
        "List the deployed versions of pipelines, and remove retired ones.", USE
    ),
    "diff": CommandGroup(
        "Halt two versions of a pipeline at equal offsets, and show the rows that differ.", USE
    ),
    "switch": CommandGroup(
        "Move the readers of a pipeline to another version, in one transaction.", USE
    ),
    "rollback": CommandGroup("Move the readers of a pipeline back to the version before.", USE),
    "user": CommandGroup("Create, list and delete users that log in with SCRAM.", USE),
    "acl": CommandGroup("List and change access control entries: who may do what.", USE),
    "quota": CommandGroup("Set, list and remove quotas of users, client ids and addresses.", USE),
    "keys": CommandGroup("Manage subjects' keys of crypto-shredding: rotate, forget.", USE),
    "transaction": CommandGroup("Show transactions, and abort hanging ones.", USE),
    "check": CommandGroup(
        "Check whether a cluster loses, duplicates, reorders or tears records.", USE
    ),
    "archive": CommandGroup(
        "Show, verify and restore archived topics, and make Delta tables of them.", INSPECT
    ),
    "metrics": CommandGroup("Print a Grafana dashboard, and alerts for Prometheus.", INSPECT),
    "log": CommandGroup("Dump and verify the log files of a data directory, offline.", INSPECT),
}

MODULES = {"cluster": "brokers"}  # of commands that have another name


class LazyGroups(TyperGroup):
    """A group whose help comes from `COMMANDS`, and whose commands are imported when resolved."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        group = COMMANDS.get(cmd_name)
        if group is None:
            return None
        return TyperCommand(cmd_name, help=group.help, rich_help_panel=group.panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        # Typer suggests a near name from here when there is no such command.
        self.commands = {known: self.get_command(ctx, known) for known in COMMANDS}
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name and command else None, rest


def load_command(name: str) -> Any:
    """Import the module of a command and make its Typer app the command `name`."""
    module = import_module(f"millstream.cli.{MODULES.get(name, name)}")
    command = typer.main.get_command(module.app)
    command.name = name
    for it in (command, *getattr(command, "commands", {}).values()):
        it.help = reflowed(it.help or "")
    return command


def reflowed(text: str) -> str:
    """A help text whose paragraphs are lines, so that they fill a terminal of any width; Typer
    keeps the line breaks of docstrings. Examples, which begin with \\b, stay as they are."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(it if it.startswith("\b") else it.replace("\n", " ") for it in paragraphs)


app = typer.Typer(
    name="millstream",
    cls=LazyGroups,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(requested: bool) -> None:
    if requested:
        from importlib import metadata  # slow to import, and only asked for here

        typer.echo(f"millstream {metadata.version('millstream')}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    bootstrap_server: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server",
            "-b",
            metavar="HOST:PORT,...",
            help=f"The cluster to talk to; also ${BOOTSTRAP_VARIABLE}.",
        ),
    ] = None,
    client_config: Annotated[
        str | None,
        typer.Option(
            "--client-config",
            metavar="FILE",
            help=f"A properties file of client settings; also ${CLIENT_CONFIG_VARIABLE}.",
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """An event log that speaks the Kafka protocol.

    Start a broker with [bold]millstream serve[/bold]; the other commands reach it, or any Kafka
    cluster, through --bootstrap-server.
    """
    hand_down(ctx, bootstrap_server, client_config)


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its code."""
    given = sys.argv[1:] if arguments is None else arguments
    exit_on_failure(
        lambda: app(arguments, prog_name="millstream"), lambda text: with_rights(text, given)
    )
