"""Correctness: every bound that an output must meet."""
