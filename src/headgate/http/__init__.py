"""Decisions in HTTP: headers, statuses and bodies. No framework is imported here."""
