"""Claims of the decor paper."""
