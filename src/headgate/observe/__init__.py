"""Hooks out: what others may know of decisions."""
