"""The figure of `grade plot`."""
