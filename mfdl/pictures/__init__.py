"""How pictures look: axes, names beside lines, graphs, and the picture of curves that end somewhere.

In: numbers with their names. Out: matplotlib Figures of their own (no global state). What they show is for the rooms
above: runs in `training`, comparisons and losses in `reporting`.
"""
