"""Checks: the requests and responses of `/v1/check`, of holds and of forward auth."""
