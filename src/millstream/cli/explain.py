"""`millstream run --explain`: a pipeline's graph, drawn with a line for every way that rows take.

    ● topic orders           ● where rows come from
    │   format   json
    ◆ aggregate by shop      ◆ what keeps state
    │   kept     until ...
    ▶ table sales (append)   ▶ where rows go

Ways that meet do so as in `git log --graph`: the first goes straight down, others bend into it.
"""

from __future__ import annotations

import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

from rich.text import Text

from millstream.cli.output import console, note
from millstream.pipelines.pipeline import Pipeline
from millstream.pipelines.running.explaining import explain
from millstream.pipelines.running.plan_steps import Explanation, Step, delivery
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.spec import Table as Sink
from millstream.pipelines.spec import Topic

SOURCE, STATE, STEP, SINK = "●", "◆", "○", "▶"
STYLES = {SOURCE: "green", STATE: "bold yellow", STEP: "", SINK: "bold cyan"}
NAME_WIDTH = 14


def explain_shown(pipelines: list[Pipeline], settings: Settings) -> None:
    """Print the graphs of pipelines; Spark is started for their plans, and nothing is read."""
    from pyspark.errors import PySparkException

    from millstream.pipelines.running.failures import explain_failure
    from millstream.pipelines.running.prerequisites import check_spark
    from millstream.pipelines.running.runner import with_defaults
    from millstream.pipelines.running.session import create_session

    check_spark()
    note("starting Spark, for its plan; nothing is read or written")
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "spark.log"
        spark = create_session(
            settings.master,
            settings.spark,
            "millstream run --explain",
            log,
            shortcuts=settings.spark_shortcuts,
        )
        try:
            for number, pipeline in enumerate(pipelines):
                try:
                    found = explain(pipeline, spark, with_defaults(settings))
                except PySparkException as error:
                    raise explain_failure(pipeline.name, error) from error
                if number:
                    console().print()
                show(found)
        finally:
            spark.stop()


def show(explanation: Explanation) -> None:
    for line in lines_of(explanation, console().width):
        console().print(line, soft_wrap=True)


def lines_of(explanation: Explanation, width: int) -> Iterator[Text]:
    """The picture of a pipeline, for a terminal as wide as this."""
    pipeline = explanation.pipeline
    yield Text.assemble((pipeline.name, "bold"), f"  in {explanation.output_mode} mode")
    for flow in explanation.flows:
        yield Text()
        yield from step_lines(flow.last, 0, width)
        yield from sink_lines(explanation, flow.outputs, width)
    notes = list(notes_on(explanation))
    if notes:
        yield Text()
    for text in notes:
        yield from (Text(line, style="yellow") for line in wrapped(text, width))


def step_lines(step: Step, lane: int, width: int) -> Iterator[Text]:
    """A step after all that flows into it; lanes to its left are those of others."""
    for number, source in enumerate(step.inputs):
        yield from step_lines(source, lane + number, width)
    if len(step.inputs) > 1:
        bends = "─┴" * (len(step.inputs) - 2) + "─╯"
        yield Text("│ " * lane + "├" + bends, style="dim")
    mark = SOURCE if not step.inputs else STATE if step.has_state else STEP
    yield Text.assemble(("│ " * lane, "dim"), (f"{mark} {step.title}", STYLES[mark]))
    longest = max((len(name) for name, _ in step.details), default=0)
    name_width = max(NAME_WIDTH, longest + 1)
    for name, value in step.details:
        style = "bold red" if step.grows and name.startswith("kept") else ""
        yield from detail_lines(name, value, lane + 1, width, style, name_width)


def sink_lines(explanation: Explanation, outputs: tuple[str, ...], width: int) -> Iterator[Text]:
    writes = explanation.pipeline.writes
    for name in outputs:
        yield Text(f"{SINK} {describe_output(writes[name])}", style=STYLES[SINK])
    yield from detail_lines("exactly once", f"by {delivery(writes.values())}", 0, width)


def describe_output(output: Topic | Sink) -> str:
    by = f" by {', '.join(output.key)}" if output.key else ""
    if isinstance(output, Topic):
        return f"topic {output.name}{by}"
    return f"table {output.name} ({output.mode}{by})"


def detail_lines(
    name: str, value: str, lanes: int, width: int, style: str = "", name_width: int = NAME_WIDTH
) -> Iterator[Text]:
    bars = "│ " * lanes or "  "
    room = max(width - len(bars) - 2 - name_width, 30)
    for number, line in enumerate(wrapped(value, room)):
        head = f"  {name if not number else '':<{name_width}}"
        yield Text.assemble((bars, "dim"), (head, "dim"), (line, style))


def notes_on(explanation: Explanation) -> Iterator[str]:
    marks = [it for it in explanation.steps if it.title.startswith("watermark on")]
    if len({it.title for it in marks}) > 1:
        yield (
            "The slowest of its watermarks counts for all; where a source may be idle, use "
            "with_heartbeat."
        )
    growing = " and of ".join(repr(it.title) for it in explanation.steps if it.grows)
    if growing:
        yield (
            f"The state of {growing} grows with every new key or row. Bound it by time "
            "(a watermark and a window, horizon=...), unless there are few of them, or the stream "
            "ends."
        )


def wrapped(text: str, width: int) -> list[str]:
    """Lines that are not longer than `width`; those of the text stay apart."""
    return [
        part
        for line in text.splitlines() or [""]
        for part in textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
        or [""]
    ]
