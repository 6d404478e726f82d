"""Verification of a problem: its check catches mutants, and accepts honest implementations."""
