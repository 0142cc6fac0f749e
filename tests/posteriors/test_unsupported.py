"""Models that cannot be fused as they are: the message names the class, the reason, and what to hand in instead."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import MiniBatchNMF
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import Lasso, LogisticRegressionCV, QuantileRegressor
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeRegressor

import consilience as cs
from consilience.posteriors.unsupported import unsupported_model

X = np.abs(np.random.default_rng(0).normal(size=(60, 2)))
LABELS, TARGETS = (X[:, 0] > 0.7).astype(int), 2.0 * X[:, 0]
SMOOTHING = {"var_smoothing": [1e-9, 1e-8]}

MODELS = {
    "search": (lambda: GridSearchCV(GaussianNB(), SMOOTHING).fit(X, LABELS), "best_estimator_"),
    "random search": (lambda: RandomizedSearchCV(GaussianNB(), SMOOTHING, n_iter=2).fit(X, LABELS), "best_estimator_"),
    "choosing": (lambda: LogisticRegressionCV, "fit LogisticRegression with it at all sites"),
    "lasso": (lambda: Lasso().fit(X, TARGETS), "penalty is on absolute values"),
    "quantiles": (lambda: QuantileRegressor().fit(X, TARGETS), "covariances by a bootstrap"),
    "forest": (lambda: RandomForestClassifier(3).fit(X, LABELS), "made of splits"),
    "boosting": (lambda: HistGradientBoostingClassifier(max_iter=2).fit(X, LABELS), "made of splits"),
    "tree": (lambda: DecisionTreeRegressor().fit(X, TARGETS), "made of splits"),
    "vectors": (lambda: SVC().fit(X, LABELS), "keeps rows of its site"),
    "neighbours": (lambda: KNeighborsClassifier().fit(X, LABELS), "keeps rows of its site"),
    "process": (lambda: GaussianProcessRegressor().fit(X, TARGETS), "SparseGP"),
    "factors": (lambda: MiniBatchNMF(2, max_iter=2000, tol=0.1).fit(X), "fit NMF"),
    "layers": (lambda: MLPClassifier, "torch module"),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_way_is_named(name):
    make, text = MODELS[name]
    model = make()
    problem = unsupported_model(model if not isinstance(model, type) else model())
    assert problem.code == "E-MODEL"
    assert text in problem
    if not isinstance(model, type):
        with pytest.raises(cs.errors.ConsilienceError, match=type(model).__name__):
            cs.fuse({"lund": model, "oslo": make()})


def test_unknown_objects_and_bases_are_told_apart():
    class Forest(RandomForestClassifier):
        pass

    assert unsupported_model(Forest()).text.startswith("is a Forest: it is made of splits")
    assert "no adapter for builtins.object" in unsupported_model(object())


def module():
    with torch.random.fork_rng(devices=[]):
        return torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)).eval()


def arrays(seed):
    torch.manual_seed(seed)
    return {name: values.numpy().copy() for name, values in module().state_dict().items()}


def test_arrays_of_federated_frameworks_are_state_dicts_where_a_module_is_given():
    sites = [arrays(seed) for seed in (0, 1)]
    expected = {name: (sites[0][name] + sites[1][name]) / 2 for name in sites[0]}
    for models in (sites, [list(one.values()) for one in sites]):
        fusion = cs.fuse(models, "average", module=module, example=torch.randn(2, 6))
        for name, values in fusion.model.state_dict().items():
            np.testing.assert_allclose(values.numpy(), expected[name], atol=1e-6)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda one: one[:-1], "is a list of 8 arrays, and the module's state_dict"),
        (lambda one: [one[1], one[0], *one[2:]], r"0\.weight: has the shape \(4,\), expected \(4, 6\)"),
    ],
)
def test_lists_of_other_arrays_are_refused(change, text):
    sites = [change(list(arrays(seed).values())) for seed in (0, 1)]
    with pytest.raises(cs.errors.InputError, match=text):
        cs.fuse(sites, "average", module=module, example=torch.randn(2, 6))


@pytest.mark.parametrize("as_type", [torch.float32, torch.float64])
def test_one_hot_labels_are_not_taken_for_a_regression(as_type):
    net, x = torch.nn.Linear(6, 3), torch.randn(120, 6)
    labels = torch.nn.functional.one_hot(torch.arange(120) % 3, 3)
    with pytest.raises(cs.errors.InputError, match=r"look one-hot.*`y.argmax\(1\)`"):
        cs.describe(net, (x, labels.to(as_type)))
    several = labels.clone()
    several[0] = 1  # where several may hold, labels are targets
    assert cs.describe(net, (x, several.float())).description is not None
