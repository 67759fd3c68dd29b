"""nccl-doctor: from a hostfile, a hung job or an error log to the guilty host, with quoted proof and a fix."""

__version__ = "0.1.0"
