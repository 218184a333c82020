"""Where Spark finds `format("millstream")` by itself: a top-level module of this name and class."""

from millstream.pipelines.source import MillstreamSource as DefaultSource

__all__ = ["DefaultSource"]
