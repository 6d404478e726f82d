"""What every request passes through: middleware, authentication, caching, limits, logging."""
