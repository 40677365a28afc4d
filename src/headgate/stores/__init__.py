"""Stores, which keep the states of limits. A store runs checks; it decides nothing else."""
