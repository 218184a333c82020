"""End to end: what a user builds on from one day to the next, with a restart in between."""
