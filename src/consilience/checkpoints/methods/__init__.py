"""Methods that merge checkpoints tensor by tensor: averages, task vectors, directions, single entries."""

from consilience.checkpoints.methods.average import TensorAverage, TensorFisher
from consilience.checkpoints.methods.base import TensorMethod
from consilience.checkpoints.methods.entrywise import RAM, ArceeFusion, NearSwap, Passthrough
from consilience.checkpoints.methods.inner_products import Karcher, ModelStock, Multislerp, NuSLERP
from consilience.checkpoints.methods.slerp import SLERP
from consilience.checkpoints.methods.sparse_changes import DELLA, SCE, Breadcrumbs
from consilience.checkpoints.methods.task_vectors import DARE, TIES, TaskArithmetic
from consilience.core.methods import MethodTable

TENSOR_METHODS: tuple[type[TensorMethod], ...] = (
    TensorAverage, TensorFisher, TIES, DARE, TaskArithmetic, SLERP, Breadcrumbs, DELLA, SCE, ModelStock, Karcher,
    Multislerp, NuSLERP, RAM, NearSwap, ArceeFusion, Passthrough,
)  # fmt: skip
"""Every method for checkpoints that stream, the plain one first; a new one is one file and one line here."""

MERGE_KEYWORDS = ("base", "weights", "dtype", "shard_bytes", "fishers", "symmetry", "module", "example", "patterns",
                  "slices", "rng", "method", "overwrite", "dry_run", "threads", "progress")  # fmt: skip
"""Keywords of ``merge`` that are no options of a method, for suggestions."""

make_tensor_method = MethodTable(TENSOR_METHODS, TensorMethod, "checkpoints", keywords=MERGE_KEYWORDS).make
"""Returns the method of a name with options, or a method as it is; see `MethodTable.make`."""
