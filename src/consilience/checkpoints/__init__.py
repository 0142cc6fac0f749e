"""Checkpoints larger than memory: planned from headers, merged as streams, resumed where they were interrupted."""
