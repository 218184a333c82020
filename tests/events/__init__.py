"""Tests of `millstream.events`."""
