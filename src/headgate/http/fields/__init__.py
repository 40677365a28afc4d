"""Header fields that carry limits: their syntax, dates and dialects."""
