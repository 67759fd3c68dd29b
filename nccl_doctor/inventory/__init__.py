"""Inventory: who is examined. Hostfile formats, node sets and Slurm lists become a tuple of hosts."""
