"""Data sources for Spark that the driver finds, instead of a Python process of Spark's own.

For the first `format("millstream")` of a JVM, Spark starts a daemon and a worker that import all
installed modules named `pyspark_*`: 0.9 s of a core, while the driver waits. Spark also gives the
sources that it finds so another environment than functions of the driver, and starts a worker
daemon for each environment: 1.2 s more. On one machine the driver has the same modules as workers.
"""

from __future__ import annotations

import logging
import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

logger = logging.getLogger(__name__)

PREFIX = "pyspark_"  # of the modules that Spark searches, for a class of this name:
CLASS = "DefaultSource"
SPARK = "org.apache.spark.sql.execution.datasources"


def provide_data_sources(spark: SparkSession) -> bool:
    """Tell the session's JVM which data sources are installed; returns whether it took them."""
    from py4j.protocol import Py4JError

    try:
        manager = _manager(spark)
        if manager.dataSourceBuilders().isEmpty():
            _provide(spark, manager)
    except (Py4JError, TypeError) as error:  # the last if a class is missing
        logger.warning("pipelines will start later: Spark searches for data sources: %s", error)
        return False
    return True


def installed_sources() -> dict[str, type[DataSource]]:
    """By their names, as Spark finds them."""
    from pyspark.sql.datasource import DataSource

    named = [it.name for it in pkgutil.iter_modules() if it.name.startswith(PREFIX)]
    found = [_class_in(it) for it in named]
    return {it.name(): it for it in found if it is not None and issubclass(it, DataSource)}


def _class_in(name: str) -> Any:
    """The source in a module, if there is one and it can be imported."""
    try:
        return getattr(import_module(name), CLASS, None)
    except Exception as error:  # noqa: BLE001 - others' code, which pipelines may not need
        logger.warning("the data source in %s cannot be used: %s", name, error)
        return None


def _manager(spark: SparkSession) -> Any:
    return getattr(getattr(spark._jvm, f"{SPARK}.DataSourceManager$"), "MODULE$")


def _provide(spark: SparkSession, manager: Any) -> None:
    from pyspark.sql.udf import _wrap_function

    jvm: Any = spark._jvm
    make = getattr(jvm, f"{SPARK}.v2.python.UserDefinedPythonDataSource")
    sources: Any = installed_sources()
    made = {name: make(_wrap_function(spark.sparkContext, it)) for name, it in sources.items()}
    builders = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(made)
    getattr(manager, "dataSourceBuilders_$eq")(jvm.scala.Some(builders))
