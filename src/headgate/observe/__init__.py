"""Hooks out: events of a running service, and what is made of them."""
