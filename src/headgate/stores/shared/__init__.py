"""Limits in the shared memory of one host: a mapped file that its processes have in common."""
