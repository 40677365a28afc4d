"""Limits in front of an application: which apply to a request, and the responses to it."""
