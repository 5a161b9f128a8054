"""Every drawing: looks of series, lines over x, curves over steps, panels, heat maps, graphs.

matplotlib Figures of their own (no global state), for PNG and SVG files (`style.write_figure`) or as SVG in the colours
of a page (`themed_svg`).
"""
