"""The cost of a policy before it runs: Redis memory and decisions, shared memory, slots of a Cluster."""
