"""Tools for tests: pytest fixtures, a clock, a faulty file system, histories, streams."""
