"""What a policy costs before it runs: Redis memory and decisions, shared memory, slots of a Cluster."""
