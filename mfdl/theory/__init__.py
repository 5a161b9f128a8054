"""What the papers state: `facts` in one table, `bounds` of privacy, `rates` and constants of averaging and training.

Nothing here decides a guarantee; it is there to be compared with.
"""
