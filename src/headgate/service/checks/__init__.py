"""Checks: what `/v1/check` and forward auth are asked, and how they answer."""
