"""Decisions as HTTP says them: headers, statuses, bodies. No framework is imported here."""
