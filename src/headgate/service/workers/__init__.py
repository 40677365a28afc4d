"""The processes of a service: one or several, their supervisor, and the policy file that they watch."""
