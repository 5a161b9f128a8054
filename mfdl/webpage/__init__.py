"""A sweep or a comparison as one page: figures, tables and the numbers behind them, in a file that needs nothing else.

In: the folder of `mfdl sweep` or `mfdl compare`. Out: report.html, and report.json with what was computed for it. The
page has no script and loads nothing: series are shown and hidden by style alone, so it works wherever HTML does.
"""
