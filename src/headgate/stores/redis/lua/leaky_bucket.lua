-- Leaky bucket as a meter: the twin of algorithms/leaky_bucket.py, and the same transition as the token bucket.

--@ same token_bucket
