"""Tests of what the command line and the console share."""
