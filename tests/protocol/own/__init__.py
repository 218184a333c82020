"""Tests of the messages of our own APIs."""
