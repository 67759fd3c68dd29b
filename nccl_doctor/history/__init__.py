"""Runs kept in a SQLite file, and what a series of them says of a host, a GPU or a NIC."""
