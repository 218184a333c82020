"""Every command of the command line, found by walking it as its help does."""

from __future__ import annotations

from millstream.cli.main import COMMANDS, load_command


def all_commands() -> list[tuple[str, ...]]:
    """The path of every command that does something: `("topic", "create")`, `("produce",)`."""
    paths: list[tuple[str, ...]] = []
    for name in COMMANDS:
        subcommands = getattr(load_command(name), "commands", {})
        paths += [(name, subcommand) for subcommand in subcommands] or [(name,)]
    return paths
