"""`millstream metrics`: the dashboard and the alerts for the metrics of brokers and pipelines."""

from __future__ import annotations

from importlib import resources

import typer

from millstream.metrics.dashboard import render

app = typer.Typer(
    help="Print a Grafana dashboard, and alerts for Prometheus.",
    rich_markup_mode="rich",
    no_args_is_help=True,
    add_completion=False,
)


@app.command()
def dashboard() -> None:
    """Print a dashboard for Grafana, as JSON.

    [bold]Examples[/bold]

    \b
      millstream metrics dashboard > millstream.json
    """
    typer.echo(render(), nl=False)


@app.command()
def alerts() -> None:
    """Print alerting rules for Prometheus, as YAML.

    [bold]Examples[/bold]

    \b
      millstream metrics alerts > millstream.rules.yml
    """
    typer.echo(read_alerts(), nl=False)


def read_alerts() -> str:
    return (resources.files("millstream.metrics") / "alerts.yaml").read_text(encoding="utf-8")
