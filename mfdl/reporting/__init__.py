"""Comparisons, tables and pictures: what people look at, at the edge of the library."""
