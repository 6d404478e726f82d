"""grade: a leaderboard and grading system for GPU kernels.

The judge never runs what it judges, and the judge's word is the only word.
"""

__version__ = "0.1.0"
