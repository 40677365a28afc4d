"""Waiting for a turn: first come, first served for each key, without a thread or a timer of its own.

`steps` has what a caller that waits does, one after another, `plan` foretells when turns come, `lines` has the order of
the callers, `freed` wakes them when a place in flight is free, and `run` does the steps in threads and in asyncio.
"""
