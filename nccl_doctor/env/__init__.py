"""Environment variables of NCCL and PyTorch: what each really does, lint of what is set, and earned recommendations."""
