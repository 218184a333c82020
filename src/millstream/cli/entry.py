"""Entry point of the `millstream` command: `serve` directly, everything else through Typer."""

from __future__ import annotations

import sys

from millstream.cli.failures import exit_on_failure


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its code."""
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["serve"]:
        from millstream.cli.serving import complete, parse_plainly, serve  # only needed by serve

        given = ["serve", *complete(given[1:])]
        options = parse_plainly(given[1:])
        if options is not None:
            exit_on_failure(lambda: serve(options))
            return
    from millstream.cli.main import main as run_command  # see above: `serve` does without Typer

    run_command(given)


if __name__ == "__main__":
    main()
