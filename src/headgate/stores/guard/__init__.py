"""What stands around a store that may fail: deadline, breaker, and the written choice for an outage."""
