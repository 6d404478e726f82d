"""Other people's problem sets, in a sandbox of their own: how each one's cases are made, computed
and checked. The judge imports none of their code."""
