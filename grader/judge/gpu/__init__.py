"""What the judge asks of its GPU: copies, graphs, the lock, its state."""
