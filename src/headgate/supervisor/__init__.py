"""Several processes on one port: they are forked, watched and replaced, and share a store."""
