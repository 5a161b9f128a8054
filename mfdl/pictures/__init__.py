"""Every drawing: looks of series, lines over x, curves over steps, panels, heat maps, graphs.

In: numbers with their names. Out: matplotlib Figures of their own (no global state), for PNG and SVG files
(`style.write_figure`) or as SVG in the colours of a page (`themed_svg`). What is drawn is decided in the rooms above:
runs in `training`, comparisons and losses in `reporting`, pages in `webpage`.
"""
