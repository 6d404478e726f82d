"""The figures of `grade plot`."""
