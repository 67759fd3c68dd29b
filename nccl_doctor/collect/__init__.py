"""Collect: runs the agents' probes over the transports, stage by stage, into a bundle."""
