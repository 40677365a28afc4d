"""Where states live. A store runs checks; it never decides anything else."""
