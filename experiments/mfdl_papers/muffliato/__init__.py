"""Muffliato, arXiv:2206.05091: pairwise loss by distance in the graph."""
