"""Every command of the command line, found by walking it as its help does."""

from __future__ import annotations

from millstream.cli.main import COMMANDS, load_command


def all_commands() -> list[tuple[str, ...]]:
    """The path of every command that does something: `("topic", "create")`, `("produce",)`. Some
    that have subcommands also do something without one: `("excise",)`."""
    paths: list[tuple[str, ...]] = []
    for name in COMMANDS:
        command = load_command(name)
        subcommands = getattr(command, "commands", {})
        if not subcommands or command.invoke_without_command:
            paths.append((name,))
        paths += [(name, subcommand) for subcommand in subcommands]
    return paths
