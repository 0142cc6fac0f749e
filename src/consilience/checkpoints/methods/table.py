"""The table of streaming merge methods, by name."""

from __future__ import annotations

from consilience.checkpoints.methods.average import TensorAverage, TensorFisher
from consilience.checkpoints.methods.base import TensorMethod
from consilience.checkpoints.methods.slerp import SLERP
from consilience.checkpoints.methods.task_vectors import DARE, TIES, TaskArithmetic

TENSOR_METHODS: tuple[type[TensorMethod], ...] = (TensorAverage, TensorFisher, TIES, DARE, TaskArithmetic, SLERP)
"""Every method for checkpoints that stream, the plain one first; a new one is one file and one line here."""
