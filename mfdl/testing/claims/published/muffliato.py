"""Claims of the muffliato paper."""
