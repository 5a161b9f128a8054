"""What the papers state: `facts` in one table, `bounds` of privacy, `rates` and constants of averaging, what `one_step`
does and `convergence` of many, `reduction` of a view to what is not redundant in it.

Nothing here decides a guarantee; it is there to be compared with.
"""
