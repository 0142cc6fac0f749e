"""Tracing of PyTorch modules: which axes of their arrays move together, and the proof that they do."""
