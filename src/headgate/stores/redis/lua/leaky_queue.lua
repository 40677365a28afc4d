-- Leaky bucket as a queue: the twin of algorithms/leaky_queue.py. The state is that of the token bucket.

--@ same token_bucket

--@ brief
-- A state does not tell the delay.

--@ delay
if cost ~= 0 and units < full then
  delay = math.ceil((full - units) / refill) + updated - now
end
