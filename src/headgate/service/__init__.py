"""The service: a policy over HTTP. A gate makes all decisions; the service turns them into responses."""
