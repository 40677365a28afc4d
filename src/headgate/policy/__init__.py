"""The policy: which requests, counted by whom, under which limits."""
