"""How fast is it? Rounds of calls, the judge's own clock, and the baselines."""
