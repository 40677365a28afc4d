"""The proxy of language models: forwards calls to providers, and holds each under a policy until it is settled."""
