"""The policy: which requests, counted by which keys, under which limits."""
