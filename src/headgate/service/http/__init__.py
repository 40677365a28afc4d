"""The service's HTTP/1.1 server: connections and their bounds, requests and responses."""
