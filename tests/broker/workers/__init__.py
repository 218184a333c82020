"""Tests of workers on one host."""
