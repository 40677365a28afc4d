"""The service: a policy over HTTP. It asks a gate and answers; it decides no limit itself."""
