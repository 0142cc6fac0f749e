"""Methods that merge checkpoints tensor by tensor: averages, task vectors, spherical interpolation."""
