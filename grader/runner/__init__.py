"""The code in the submission's process. It holds no secrets, and the judge does not trust it."""
