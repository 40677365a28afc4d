"""The endpoints for operators and monitoring: health, readiness, metrics."""
