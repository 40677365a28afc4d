"""Several processes on one port: forked, watched, replaced; what they share beside a store."""
