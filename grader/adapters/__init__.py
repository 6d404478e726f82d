"""Adapters to what trains, evaluates and runs models that write kernels.

Each has one module and one extra of the package, and uses only the Python API (docs/adapters.md).
A model's text is hostile: an adapter passes it to the grader as source, and never executes it.
"""
