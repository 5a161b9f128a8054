"""Balls-in-bins: statements of this library close to its theorem, some of them false."""
