"""The hosted leaderboard: its API, its pages, and the people who use them."""
