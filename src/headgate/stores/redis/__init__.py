"""Limits on Redis or Valkey: single, Sentinel, Cluster; from threads and from an event loop."""
