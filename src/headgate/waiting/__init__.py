"""Waiting for a turn: first come, first served for each key, without a thread or a timer of its own.

`steps` defines the steps of a waiting caller, `plan` predicts when turns come, `lines` keeps the callers in order,
`freed` wakes them when a place in flight is free, and `run` performs the steps in threads and in asyncio.
"""
