"""The guard of a store that may fail: deadline, circuit breaker, and the configured choice for an outage."""
