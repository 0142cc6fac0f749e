"""What each operation of the graph does to the axes of its tensors."""
