"""The judge's use of its GPU: copies, CUDA graphs, the lock, the GPU's state."""
