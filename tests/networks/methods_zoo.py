"""Every method for networks, and the networks that the laws are asked of."""

from copy import deepcopy

import pytest
import torch

import consilience as cs
from consilience.networks.methods import NETWORK_METHODS
from consilience.networks.methods.baselines import NetworkEnsembleMethod
from tests.networks.fusable_nets import proved
from tests.specimens import Specimens

SPECIMENS = Specimens(
    "SPECIMENS in tests/networks/methods_zoo.py",
    {
        "ot": cs.methods.OTFusion(),
        "wb": cs.methods.WassersteinFusion(),
        "gwb": cs.methods.GromovFusion(),
        "rebasin": cs.methods.ReBasin(),
        "auto": cs.methods.Auto(),
        "consensus": cs.methods.Consensus(refit=False),
        "fedma": cs.methods.FedMA(),
        "fisher": cs.methods.FisherMerging(tolerance=1e-13, max_iterations=5000),
        "ssf": cs.methods.SelfSupervisedFisher(tolerance=1e-13, max_iterations=5000),
        "kfac": cs.methods.KFAC(damping=0.1, tolerance=1e-13),
        "fedfisher": cs.methods.FedFisher(steps=50),
        "fedlpa": cs.methods.FedLPA(tolerance=1e-13),
        "distill": cs.methods.Distill(steps=20),
        "average": cs.methods.NetworkAverage(),
        "ensemble": NetworkEnsembleMethod(),
    },
)
"""By the method's name; a new method is a new entry here."""
NAMES = [kind.name for kind in NETWORK_METHODS]
"""What the laws of all methods run over: the table itself."""


def _matches(method):
    """Return whether a method only matches units by weights, so that the laws of renumbering hold for it."""
    is_trained = isinstance(method, cs.methods.Distill)
    return not (method.optional_symmetry or method.keeps_models or method.wants_information or is_trained)


METHODS = {name: SPECIMENS[name] for name in NAMES if name in SPECIMENS and _matches(SPECIMENS[name])}
VARIANTS = {
    "ot, lengths": cs.methods.OTFusion(metric="euclidean", normalize=True),
    "wb, restarts": cs.methods.WassersteinFusion(restarts=3),
    "wb, random": cs.methods.WassersteinFusion(start="random"),
    "rebasin, restarts": cs.methods.ReBasin(restarts=3),
    "consensus, as scaled": cs.methods.Consensus(refit=False, balance=False, restarts=1),
}
NETWORKS = [
    "mlp", "mlp without biases", "lenet", "resnet18", "depthwise", "densenet", "transformer encoder", "gpt",
    "tied embedding", "lstm both ways", "gru",
]  # fmt: skip
FEW = ["mlp", "lenet", pytest.param("resnet18", marks=pytest.mark.slow), "transformer encoder"]
SLOW_PAIRS = [("auto", name) for name in ("resnet18", "densenet", "depthwise", "gpt", "transformer encoder")]
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
every_variant = pytest.mark.parametrize(
    "method",
    [
        pytest.param(method, id=name, marks=[pytest.mark.slow] if name == "wb, random" else [])  # the slowest start
        for name, method in (METHODS | VARIANTS).items()
    ],
)
# Whether units match is asked of one layer after another, so that no numbering has a say; the others start their
# descent from the models as they are numbered.
LAYERWISE = ["ot", "wb", "gwb", "fedma"]
# What entropic plans may miss their marginals by.
MARGINALS = 1e-6


def every_method_on(*names):
    """Return parameters: every method on every network, the default one on large networks among the slow tests."""
    return _pairs([(title, name) for name in names for title in METHODS], SLOW_PAIRS)


def every_method_on_few(*names):
    """Return parameters: every method on networks and on a large one, for laws that fuse more than once.

    The large one is a ResNet-18, among the slow tests. The default fuses it eight times, on images that it makes first:
    a smaller network with batch normalisation takes its place.
    """
    large = [(title, "depthwise" if title == "auto" else "resnet18") for title in METHODS]
    return _pairs([*((title, name) for name in names for title in METHODS), *large], [*SLOW_PAIRS, *large])


def _pairs(pairs, slow):
    parameters = [
        pytest.param(
            METHODS[title], name, id=f"{title}-{name}", marks=[pytest.mark.slow] if (title, name) in slow else []
        )
        for title, name in pairs
    ]
    return pytest.mark.parametrize(("method", "name"), parameters)


def named(*names):
    all_methods = METHODS | VARIANTS
    return pytest.mark.parametrize("method", [all_methods[name] for name in names], ids=names)


def fused(models, method, name, **options):
    _, inputs, symmetry = proved(name)
    return cs.fuse(models, method=method, symmetry=symmetry, example=inputs, **options)


def near(module, size, seed):
    """Return a copy of a network with a little noise on its parameters."""
    copied = deepcopy(module)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for array in copied.parameters():
            array.data += size * torch.randn_like(array)
    return copied


def as_scaled(method):
    """Return a method that writes its fused network in the scales of the models."""
    return VARIANTS["consensus, as scaled"] if isinstance(method, cs.methods.Consensus) else method
