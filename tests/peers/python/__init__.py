"""The Python clients as programs: see `tests/peers/programs.py` for what they are asked."""
