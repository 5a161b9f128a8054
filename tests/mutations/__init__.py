"""Known pitfalls planted in the library one by one, to see that the tests go red: see `run.py`."""
