"""The methods that merge checkpoints tensor by tensor, by name."""

from __future__ import annotations

from consilience.methods.spherical import SLERP
from consilience.methods.task_vectors import DARE, TIES, TaskArithmetic
from consilience.methods.tensor_average import TensorAverage, TensorFisher
from consilience.methods.tensor_method import TensorMethod

TENSOR_METHODS: tuple[type[TensorMethod], ...] = (TensorAverage, TensorFisher, TIES, DARE, TaskArithmetic, SLERP)
"""Every method for checkpoints that stream, the plain one first; a new one is one file and one line here."""
