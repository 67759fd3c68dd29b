"""Inventory: who is examined. Hostfile formats, node sets and Slurm lists become a tuple of hosts."""

from nccl_doctor.inventory.model import HostEntry, Inventory, InventoryError
from nccl_doctor.inventory.sources import from_list, load, render

__all__ = ["HostEntry", "Inventory", "InventoryError", "from_list", "load", "render"]
