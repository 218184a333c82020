"""Tests of the console, in a real browser against a real broker."""
