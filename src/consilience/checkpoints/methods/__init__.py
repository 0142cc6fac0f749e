"""Methods that merge checkpoints tensor by tensor: averages, task vectors, directions, matrices, single entries."""

from collections.abc import Mapping
from typing import Any

from consilience.checkpoints.methods.average import TensorAverage, TensorFisher
from consilience.checkpoints.methods.base import TensorMethod
from consilience.checkpoints.methods.entrywise import RAM, ArceeFusion, NearSwap, Passthrough
from consilience.checkpoints.methods.inner_products import Karcher, ModelStock, Multislerp, NuSLERP
from consilience.checkpoints.methods.regression_mean import WUDI, RegMean
from consilience.checkpoints.methods.slerp import SLERP
from consilience.checkpoints.methods.sparse_changes import DELLA, SCE, Breadcrumbs
from consilience.checkpoints.methods.spectra import TSVM, Iso, KnOTS
from consilience.checkpoints.methods.task_vectors import DARE, TIES, TaskArithmetic
from consilience.core.methods import MethodTable

TENSOR_METHODS: tuple[type[TensorMethod], ...] = (
    TensorAverage, TensorFisher, TIES, DARE, TaskArithmetic, SLERP, Breadcrumbs, DELLA, SCE, ModelStock, Karcher,
    Multislerp, NuSLERP, RAM, NearSwap, ArceeFusion, TSVM, Iso, KnOTS, WUDI, RegMean, Passthrough,
)  # fmt: skip
"""Every method for checkpoints that stream, the plain one first; a new one is one file and one line here."""

OTHER_NAMES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "iso_c": ("iso", {}),
    "iso_cts": ("iso", {"common": 0.8}),
    "ace": ("wudi", {"centered": True}),
}
"""Names of papers: our method, and the options that they say. Those of mergekit are in its own table."""

MERGE_KEYWORDS = ("base", "weights", "dtype", "shard_bytes", "fishers", "symmetry", "module", "example", "patterns",
                  "slices", "rank", "vocabulary", "chat_template", "rng", "method", "overwrite", "dry_run", "threads",
                  "engine", "progress")  # fmt: skip
"""Keywords of ``merge`` that are no options of a method, for suggestions."""

make_tensor_method = MethodTable(TENSOR_METHODS, TensorMethod, "checkpoints", keywords=MERGE_KEYWORDS).make
"""Returns the method of a name with options, or a method as it is; see `MethodTable.make`."""
