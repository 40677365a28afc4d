"""HTTP/1.1 as the service speaks it: connections and their bounds, requests and responses, listening sockets."""
