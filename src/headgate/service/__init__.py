"""The service: a policy over HTTP. No rate limiting is decided here, only asked for and told."""
