"""`millstream prepare`: makes pipelines start faster in this Python environment."""

from __future__ import annotations

import typer

from millstream.cli.output import console, note

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command()
def prepare() -> None:
    """Make pipelines start faster in this Python environment.

    Runs two small pipelines and has Java archive the classes that Spark loaded. From then
    on, `millstream run` and `millstream demo` start with 40 % less work, on the newest
    installed Java that Spark supports (17, 21 or 25), or on the one of JAVA_HOME; with Java
    25 it is the least. Takes up to a minute and 190 MB, once; again after an update of Java
    or PySpark. Worth a line in the build of a container image.

    [bold]Examples[/bold]

    \b
      millstream prepare
    """
    from millstream.pipelines.running.class_archive import archive_path, prepare
    from millstream.pipelines.running.javas import choose_java

    with console().status("collecting the classes that Spark loads (once, up to a minute)"):
        is_new = prepare()
    java = choose_java()
    name = "Java" if java is None else java.name
    note(f"{'wrote' if is_new else 'already prepared:'} {archive_path()}, for {name}")
