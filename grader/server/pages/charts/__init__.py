"""Charts as inline SVG. Pure functions.

Colours are classes of the style sheet, so that a chart suits the light and the dark theme. The
pages' content security policy forbids style attributes and scripts, and charts have neither.
"""
