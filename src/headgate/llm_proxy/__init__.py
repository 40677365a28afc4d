"""The proxy of language models: stands before providers, and holds each call under a policy until it is settled."""
