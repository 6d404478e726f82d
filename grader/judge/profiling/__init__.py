"""Profiles of kernels: launches, resources, and what limits them."""
