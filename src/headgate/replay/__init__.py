"""Replays of logs: what a policy would have done with past traffic."""
