"""Calls to servers that have limits: wait for a turn, read what the server says of its limits, retry."""
