"""Merging checkpoints larger than memory, tensor by tensor."""
