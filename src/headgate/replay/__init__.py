"""Logs in: what a policy would have done with traffic that has been."""
