"""What every request passes through: middleware, authentication, caches, limits."""
