"""Environment: what NCCL and torch variables mean and do, and which to set."""
