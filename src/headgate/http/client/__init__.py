"""Calls to servers that have limits: wait for a turn, read the limits that the server announces, retry."""
