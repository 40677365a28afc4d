"""Events of a running service, and the metrics that are derived from them."""
