"""Claims of the corn paper."""
