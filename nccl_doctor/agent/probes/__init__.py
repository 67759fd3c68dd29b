"""Probes: one module per subject; each public probe is a function ``probe(arguments) -> dict`` of plain JSON data."""
