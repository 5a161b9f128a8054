"""Every drawing: looks of series, lines over x, curves over steps, panels, heat maps, graphs.

matplotlib Figures of their own, for PNG and SVG files (`style.write_figure`) or as SVG in a page (`style.themed_svg`).
"""
