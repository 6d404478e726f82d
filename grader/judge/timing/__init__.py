"""Timing: rounds of calls, the judge's outside clock, and baselines."""
