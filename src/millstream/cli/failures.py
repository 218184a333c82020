"""Errors of the command line: one line on stderr and an exit code, no traceback.

0    done
1    the command failed
2    the command line itself is wrong (unknown option, missing argument, ill-formed value)
3    no broker answered
130  interrupted (Ctrl-C)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from millstream.admin.errors import InvalidArgument
from millstream.errors import MillstreamError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_INTERRUPTED = 130


class CommandFailed(MillstreamError):
    """The command failed; the message says why, and what to do."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def usage_error(message: str) -> CommandFailed:
    return CommandFailed(message, EXIT_USAGE)


def unreachable(bootstrap_servers: str) -> CommandFailed:
    return CommandFailed(
        f"no broker answers at {bootstrap_servers}; start one with `millstream serve`, or set "
        "--bootstrap-server HOST:PORT",
        EXIT_UNREACHABLE,
    )


def exit_on_failure(command: Callable[[], object], describe: Callable[[str], str] = str) -> None:
    """Run a command; if it fails, print the reason as `describe` has it; exit with its code."""
    try:
        command()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output (`head`, a pager) has exited; at exit Python would flush again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:
        failure = explain(error)
        if failure is None:
            raise
        import typer  # only here: a broker that serves does without it

        message = describe(str(failure))
        typer.secho(f"millstream: {message}", err=True, fg=typer.colors.RED)
        sys.exit(failure.exit_code)


def explain(error: Exception) -> CommandFailed | None:
    """The message for the user; None for a bug, which gets a traceback."""
    if isinstance(error, CommandFailed):
        return error
    if isinstance(error, InvalidArgument):
        return usage_error(str(error))
    if isinstance(error, MillstreamError):
        return CommandFailed(str(error))
    if isinstance(error, OSError):
        subject = f"{error.filename}: " if error.filename else ""
        return CommandFailed(f"{subject}{error.strerror or error}")

    from confluent_kafka import KafkaException  # only here: 0.1 s that no successful command pays

    if isinstance(error, KafkaException):
        return CommandFailed(describe_kafka_error(error.args[0]))
    return None


def describe_kafka_error(error: Any) -> str:
    """A librdkafka error with its name, so that it can be looked up: `message (NAME)`."""
    return f"{error.str().rstrip('.')} ({error.name()})"
