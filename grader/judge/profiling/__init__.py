"""What a kernel is made of, and what limits it."""
