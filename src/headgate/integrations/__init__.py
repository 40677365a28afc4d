"""One small file for each framework and client library; each imports its own, and nothing else imports it."""
