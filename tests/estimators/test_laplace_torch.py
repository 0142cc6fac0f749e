"""Laws of fused approximations of laplace-torch: Bayesian linear regression and products by inversion are the oracles.

Every test runs on small classes that stand in, and on laplace-torch itself where it is installed.
"""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest

import consilience as cs
from consilience.api.kinds import inspect_file
from consilience.estimators.inputs import HyperParameterWarning
from tests.cli.running import command

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402  (after the skip)

from tests.estimators.laplace_stand_ins import fitted, installed  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),  # what laplace-torch imports uses
    pytest.mark.covering(2),
]

EXACT = 1e-8
"""Of a product against the law of all rows, both in float64."""
SINGLE = 2e-4
"""Of networks in float32."""

NOISE = 0.3
COLUMNS, OUTPUTS = 4, 2
SUBSETS = ("all", "last_layer")


@pytest.fixture(params=["stand-in", "laplace-torch"], scope="module")
def library(request):
    if request.param == "stand-in":
        return None
    package = installed()
    if package is None:
        pytest.skip("laplace-torch is not installed")
    return package


@pytest.fixture
def double():
    """Let laplace-torch's curvature be of float64, which follows the default and not the network."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def linear_rows(n=240):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, COLUMNS)) + 1.0
    Y = X @ rng.normal(size=(COLUMNS, OUTPUTS)) + NOISE * rng.normal(size=(n, OUTPUTS)) + 1.0
    return X, Y


def linear_law(X, Y, noise, precision, centre):
    """Return the mean and the precision of Bayesian linear regression, output by output, weights before biases."""
    A = np.hstack([X, np.ones((len(X), 1))])
    q = OUTPUTS * (COLUMNS + 1)
    place = np.array([[o * COLUMNS + c for c in range(COLUMNS)] + [OUTPUTS * COLUMNS + o] for o in range(OUTPUTS)])
    Lam, shift = np.diag(np.broadcast_to(precision, q)).copy(), np.broadcast_to(precision * centre, q).copy()
    for o in range(OUTPUTS):
        Lam[np.ix_(place[o], place[o])] += A.T @ A / noise**2
        shift[place[o]] += A.T @ Y[:, o] / noise**2
    return np.linalg.solve(Lam, shift), Lam


def linear_site(library, X, Y, subset="all", noise=NOISE, precision=2.0, centre=0.0, **options):
    """Return the approximation at the mode of one site, whose network is linear in its weights."""
    mean, _ = linear_law(X, Y, noise, np.asarray(by_weight(precision)), np.asarray(centre))
    last = nn.Linear(COLUMNS, OUTPUTS, dtype=torch.float64)
    with torch.no_grad():
        last.weight.copy_(torch.as_tensor(mean[: OUTPUTS * COLUMNS].reshape(OUTPUTS, COLUMNS)))
        last.bias.copy_(torch.as_tensor(mean[OUTPUTS * COLUMNS :]))
    before = [] if subset == "all" else [nn.Identity(), nn.LayerNorm(COLUMNS, elementwise_affine=False)]
    return fitted(
        library,
        nn.Sequential(*before, last),
        X,
        Y,
        subset,
        "regression",
        sigma_noise=noise,
        prior_precision=as_tensor(precision),
        prior_mean=as_tensor(centre),
        **options,
    )


def as_tensor(values):
    return float(values) if np.ndim(values) == 0 else torch.as_tensor(np.asarray(values, dtype=float))


def by_weight(values):
    return np.repeat(values, [OUTPUTS * COLUMNS, OUTPUTS]) if np.shape(values) == (2,) else values


def normalised(X):
    """Return what the layers before the last one of a last-layer site make of rows."""
    return (X - X.mean(axis=1, keepdims=True)) / np.sqrt(X.var(axis=1, keepdims=True) + 1e-5)


def parts(n, n_sites=4):
    return np.array_split(np.argsort(linear_rows()[0][:n, 0]), n_sites)


PRIORS = {
    "one number": (2.0, 0.0),
    "one for each tensor": ([0.5, 3.0], 0.0),
    "one for each weight": (np.linspace(0.2, 4.0, OUTPUTS * (COLUMNS + 1)), 0.0),
    "about another mean": (2.0, 0.7),
    "about a vector": (2.0, np.linspace(-1.0, 1.0, OUTPUTS * (COLUMNS + 1))),
}


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("prior", PRIORS)
def test_of_a_linear_network_the_product_is_the_law_of_all_rows(library, prior):
    X, Y = linear_rows()
    precision, centre = PRIORS[prior]
    sites = {
        f"site {k}": linear_site(library, X[rows], Y[rows], precision=precision, centre=centre)
        for k, rows in enumerate(parts(len(X)))
    }
    fusion = cs.fuse(sites)
    mean, Lam = linear_law(X, Y, NOISE, np.asarray(by_weight(precision)), np.asarray(centre))
    assert type(fusion.model) is type(sites["site 0"])
    np.testing.assert_allclose(fusion.model.mean.numpy(), mean, rtol=EXACT, atol=EXACT)
    np.testing.assert_allclose(fusion.model.posterior_precision.numpy(), Lam, rtol=EXACT, atol=EXACT)
    pooled = linear_site(library, X, Y, precision=precision, centre=centre)
    for ours, its in zip(fusion.model(torch.as_tensor(X[:7])), pooled(torch.as_tensor(X[:7])), strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), its.detach().numpy(), rtol=EXACT)
    assert fusion.model.n_data == len(X)


@pytest.mark.usefixtures("double")
def test_of_a_last_layer_on_shared_features_the_product_is_the_law_of_all_rows(library):
    X, Y = linear_rows()
    F = normalised(X)
    sites = []
    for rows in parts(len(X)):
        site = linear_site(library, F[rows], Y[rows])  # whose mode is that of the last layer on these features
        last = site.model[-1]
        network = nn.Sequential(nn.Identity(), nn.LayerNorm(COLUMNS, elementwise_affine=False), last)
        sites.append(
            fitted(
                library, network, X[rows], Y[rows], "last_layer", "regression", sigma_noise=NOISE, prior_precision=2.0
            )
        )
    fusion = cs.fuse(sites)
    mean, Lam = linear_law(F, Y, NOISE, np.asarray(2.0), np.asarray(0.0))
    np.testing.assert_allclose(fusion.model.mean.numpy(), mean, rtol=EXACT, atol=EXACT)
    np.testing.assert_allclose(fusion.model.posterior_precision.numpy(), Lam, rtol=EXACT, atol=EXACT)
    outputs, _ = fusion.model(torch.as_tensor(X[:7]))
    A = np.hstack([F[:7], np.ones((7, 1))])
    B = np.vstack([mean[: OUTPUTS * COLUMNS].reshape(OUTPUTS, COLUMNS).T, mean[OUTPUTS * COLUMNS :]])
    np.testing.assert_allclose(outputs.detach().numpy(), A @ B, rtol=1e-7)


@pytest.mark.usefixtures("double")
def test_sites_of_other_noise_and_temperature_weigh_by_them(library):
    X, Y = linear_rows()
    noises = (0.2, 0.5)
    halves = parts(len(X), 2)
    sites = [linear_site(library, X[rows], Y[rows], noise=noise) for rows, noise in zip(halves, noises, strict=True)]
    with pytest.warns(HyperParameterWarning, match="sigma_noise is 0.2"):
        fusion = cs.fuse(sites)
    Lam, shift = 2.0 * np.eye(OUTPUTS * (COLUMNS + 1)), 0.0
    for rows, noise in zip(halves, noises, strict=True):
        m, L = linear_law(X[rows], Y[rows], noise, np.asarray(2.0), np.asarray(0.0))
        Lam, shift = Lam + L - 2.0 * np.eye(len(L)), shift + L @ m
    np.testing.assert_allclose(fusion.model.mean.numpy(), np.linalg.solve(Lam, shift), rtol=EXACT)
    np.testing.assert_allclose(fusion.model.posterior_precision.numpy(), Lam, rtol=EXACT)
    cooled = linear_site(library, X, Y, temperature=0.5)
    np.testing.assert_allclose(
        cs.rebuild(cs.describe(cooled)).posterior_precision, cooled.posterior_precision.numpy(), rtol=EXACT
    )


def class_rows(n=300, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    X = rng.normal(size=(n, COLUMNS)) + np.eye(3, COLUMNS)[y] * 1.5
    return X.astype(np.float32), y


def network(seed=0, hidden=6, normalised=False):
    torch.manual_seed(seed)
    middle = [nn.BatchNorm1d(hidden)] if normalised else []
    return nn.Sequential(nn.Linear(COLUMNS, hidden), *middle, nn.Tanh(), nn.Linear(hidden, 3))


def trained(net, X, y, steps=60, only_last=False):
    parameters = list(net[-1].parameters()) if only_last else list(net.parameters())
    optimiser = torch.optim.Adam(parameters, 0.02, weight_decay=1.0 / len(X))
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(torch.as_tensor(X)), torch.as_tensor(y)).backward()
        optimiser.step()
    return net.eval()


def class_sites(library, subset, n_sites=3, starts=None, hidden=6):
    X, y = class_rows()
    sites = {}
    for k in range(n_sites):
        net = network(0 if starts is None else starts[k], hidden)
        own = slice(k, None, n_sites)
        sites[f"site {k}"] = fitted(
            library, trained(net, X[own], y[own], only_last=subset == "last_layer"), X[own], y[own], subset
        )
    return sites


def product_by_inversion(sites, precision=1.0):
    """Return the mean and the precision of the product of laws, priors of mean zero counted once."""
    Lams = [site.posterior_precision.double().numpy() for site in sites]
    identity = precision * np.eye(len(Lams[0]))
    Lam = sum(Lams) - (len(Lams) - 1) * identity
    shift = sum(L @ site.mean.double().numpy() for L, site in zip(Lams, sites, strict=True))
    return np.linalg.solve(Lam, shift), Lam


@pytest.mark.parametrize("subset", SUBSETS)
def test_of_classifiers_it_is_the_product_of_laws_with_their_prior_counted_once(library, subset):
    sites = class_sites(library, subset)
    before = {name: copy.deepcopy(site.mean) for name, site in sites.items()}
    fusion = cs.fuse(sites)
    mean, Lam = product_by_inversion(list(sites.values()))
    np.testing.assert_allclose(fusion.model.mean.numpy(), mean, rtol=SINGLE, atol=SINGLE)
    np.testing.assert_allclose(
        fusion.model.posterior_precision.numpy(), Lam, rtol=SINGLE, atol=SINGLE * np.abs(Lam).max()
    )
    X, y = class_rows(seed=1)
    accuracy = float((fusion.model(torch.as_tensor(X)).argmax(dim=1).numpy() == y).mean())
    assert accuracy > 0.6  # features are those of a network at its start
    assert fusion.verdict.code == "approximate"
    assert ("one start" in fusion.verdict.text) == (subset == "all")
    assert fusion.verdict.remedy is None or "meta_analysis" in fusion.verdict.remedy
    for name, site in sites.items():
        np.testing.assert_array_equal(site.mean.numpy(), before[name].numpy())


@pytest.mark.parametrize("subset", SUBSETS)
def test_a_fused_approximation_predicts_from_its_own_rows_whatever_others_predict(library, subset):
    sites = class_sites(library, subset)
    fused = cs.fuse(sites).model
    A, B = (torch.as_tensor(class_rows(seed=seed)[0][:5]) for seed in (2, 3))
    first, second = fused(A), fused(B)
    sites["site 0"](A)
    np.testing.assert_array_equal(fused(B).numpy(), second.numpy())
    np.testing.assert_array_equal(fused(A).numpy(), first.numpy())
    with torch.no_grad():  # and its network is that of the fused mean
        logits = fused.model(A)
    weights = cs.rebuild(cs.fuse(sites).statistics).arrays()
    own = {name.removeprefix("model."): values for name, values in fused.model.named_parameters()}
    for name, values in weights.items():
        np.testing.assert_allclose(own[name].detach().numpy(), values, rtol=1e-6, atol=1e-7)
    assert logits.shape == (5, 3)


def test_nothing_of_a_sites_rows_stays_in_what_is_fused(library):
    sites = class_sites(library, "last_layer")
    fused = cs.fuse(sites).model
    assert fused.data is None
    assert not fused.model._features
    assert sites["site 0"].data is not None


@pytest.mark.parametrize("subset", SUBSETS)
def test_one_site_is_its_own_law(library, subset):
    site = class_sites(library, subset, 1)["site 0"]
    law = cs.rebuild(cs.describe(site))
    np.testing.assert_allclose(law.mean, site.mean.numpy(), rtol=SINGLE, atol=SINGLE)
    np.testing.assert_allclose(law.posterior_precision, site.posterior_precision.numpy(), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(law.posterior_covariance @ law.posterior_precision, np.eye(len(law.mean)), atol=1e-6)
    draws = law.sample(20_000, rng=0)
    np.testing.assert_allclose(np.cov(draws.T), law.posterior_covariance, atol=0.06)
    assert law.arrays()["0.weight" if subset == "all" else "2.weight"].shape == ((6, 4) if subset == "all" else (3, 6))


def test_order_and_grouping_of_sites_change_nothing(library):
    sites = class_sites(library, "last_layer")
    whole = cs.fuse(sites)
    turned = cs.fuse(dict(reversed(sites.items())))
    np.testing.assert_array_equal(whole.statistics.counts["shift"], turned.statistics.counts["shift"])
    names = list(sites)
    grown = cs.add(cs.fuse({name: sites[name] for name in names[:2]}), sites[names[2]])
    np.testing.assert_allclose(grown.model.mean, whole.model.mean.numpy(), rtol=SINGLE, atol=SINGLE)
    shrunk = cs.remove(grown, sites[names[2]])
    np.testing.assert_allclose(shrunk.model.mean, cs.fuse([sites[n] for n in names[:2]]).model.mean, atol=SINGLE)


@pytest.mark.parametrize("subset", SUBSETS)
def test_files_are_written_checked_inspected_fused_and_put_back(library, subset, tmp_path):
    sites = class_sites(library, subset)
    for name, site in sites.items():
        cs.save(site, tmp_path / f"{name}.safetensors")
    paths = sorted(tmp_path.glob("site*.safetensors"))
    assert cs.check(paths) == []
    done = command("fuse", *map(str, paths), "-o", str(tmp_path / "fused.safetensors"))
    assert (done.code, {"all": "FullLaplace", "last_layer": "FullLLLaplace"}[subset] in done.out) == (0, True)
    shown = dict(inspect_file(tmp_path / "fused.safetensors").rows)
    assert shown["columns"] == str(len(sites["site 0"].mean))
    fusion = cs.fuse(paths)
    assert "FusedLaplace" in repr(fusion.model)
    in_memory = cs.fuse(sites)
    np.testing.assert_allclose(fusion.model.mean, in_memory.model.mean.numpy(), rtol=1e-6, atol=1e-7)
    for what in (cs.load(tmp_path / "fused.safetensors"), fusion, fusion.model):
        written = cs.written_like(what, sites["site 1"])
        rows = torch.as_tensor(class_rows(seed=4)[0][:5])
        np.testing.assert_allclose(written(rows).numpy(), in_memory.model(rows).numpy(), rtol=1e-4, atol=1e-5)
    again = pickle.loads(pickle.dumps(fusion.model))  # noqa: S301  (our own bytes)
    np.testing.assert_array_equal(again.mean, fusion.model.mean)
    fusion.report(tmp_path / "page.html")
    assert "Laplace approximations" in (tmp_path / "page.html").read_text()


@pytest.mark.usefixtures("double")
def test_the_prior_of_the_fused_law_may_be_named_and_others_are_told(library):
    X, Y = linear_rows()
    halves = parts(len(X), 2)
    sites = [linear_site(library, X[rows], Y[rows], precision=p) for rows, p in zip(halves, (1.0, 4.0), strict=True)]
    with pytest.warns(HyperParameterWarning, match="prior_precision is 1.0"):
        cs.fuse(sites)
    fusion = cs.fuse(sites, prior_precision=3.0)
    mean, Lam = linear_law(X, Y, NOISE, np.asarray(3.0), np.asarray(0.0))
    np.testing.assert_allclose(fusion.model.mean.numpy(), mean, rtol=EXACT, atol=EXACT)
    np.testing.assert_allclose(fusion.model.posterior_precision.numpy(), Lam, rtol=EXACT)
    with pytest.raises(cs.errors.InputError, match="prior_precision: expected 1, 2 or 10 finite numbers"):
        cs.fuse(sites, prior_precision=[1.0, 2.0, 3.0])


def test_networks_of_different_starts_are_refused_and_a_start_may_be_stated(library):
    apart = class_sites(library, "all", 2, starts=(0, 1), hidden=16)
    with pytest.raises(
        cs.errors.InputError, match=r"site 1: has a network of another start than site 0 \(cosine of weights"
    ):
        cs.fuse(apart)
    assert "another start" in cs.check(apart)[0].text
    for site in apart.values():  # as of continual learning, where the start is the mean of the prior
        site.prior_mean = torch.linspace(-0.1, 0.1, len(site.mean))
    assert cs.check(apart) == []


def changed_last_layers(library):
    sites = class_sites(library, "last_layer", 2)
    X, y = class_rows()
    other = fitted(library, trained(network(5), X, y, only_last=True), X, y, "last_layer")
    return [sites["site 0"], other]


def batch_normalised(library):
    X, y = class_rows()
    return [fitted(library, trained(network(0, normalised=True), X[k::2], y[k::2]), X[k::2], y[k::2]) for k in range(2)]


def wider(library):
    X, y = class_rows()
    return [fitted(library, trained(network(0, hidden), X[hidden::2], y[hidden::2]), X, y) for hidden in (6, 7)]


def of_two_likelihoods(library):
    X, Y = linear_rows()
    regression = linear_site(library, X, Y)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(COLUMNS, OUTPUTS, dtype=torch.float64))
    return [regression, fitted(library, net, X, (X[:, 0] > 1).astype(int))]


CONTRADICTIONS = {
    changed_last_layers: "has the last layer of other features than model 0",
    batch_normalised: "has other frozen weights or buffers than model 0, such as running means",
    wider: r"has 0.weight of shape \[7, 4\], expected \[6, 4\] as in model 0",
    of_two_likelihoods: "took sums with likelihood classification, expected regression",
}


@pytest.mark.parametrize("make", CONTRADICTIONS, ids=lambda make: make.__name__)
def test_networks_that_are_not_one_are_refused_by_name(library, make):
    with pytest.raises(cs.errors.InputError, match=CONTRADICTIONS[make]):
        cs.fuse(make(library))


def test_what_is_no_law_to_multiply_is_refused_in_one_line(library):
    site = class_sites(library, "all", 1)["site 0"]
    X, y = class_rows()
    with pytest.raises(cs.errors.OptionError, match="a fitted FullLaplace says all; leave them out"):
        cs.describe(site, data=(X, y))
    bent = copy.deepcopy(site)
    bent.H = bent.H - 100.0 * torch.eye(len(bent.mean))
    with pytest.raises(cs.errors.InputError, match="curvature that is not positive semidefinite"):
        cs.describe(bent)
    bent.H = torch.full_like(site.H, float("nan"))
    with pytest.raises(cs.errors.InputError, match="has no finite mean and curvature of its 51 weights"):
        cs.describe(bent)
    law = cs.rebuild(cs.describe(site))
    with pytest.raises(cs.errors.InputError, match="was fused before"):
        cs.fuse([law, site])
    with pytest.raises(cs.errors.UnsupportedError, match="has no likelihood here without its network"):
        cs.federated.request("refine", cs.fuse(class_sites(library, "last_layer")))
    with pytest.raises(cs.errors.InputError, match="like: is a Linear, expected a fitted FullLaplace"):
        cs.written_like(law, nn.Linear(2, 2))
    with pytest.raises(cs.errors.InputError, match="like: covers other weights than the fused FullLaplace"):
        cs.written_like(law, wider(library)[1])


def test_an_approximation_that_was_not_fitted_is_refused():
    library = installed()
    if library is None:
        model = type("FullLaplace", (), {"__module__": "laplace.baselaplace", "n_data": 0})()
    else:
        model = library.Laplace(network(), "classification", subset_of_weights="all", hessian_structure="full")
    with pytest.raises(cs.errors.InputError, match="this FullLaplace is not fitted yet; call fit first"):
        cs.describe(model)


@pytest.mark.parametrize("subset", SUBSETS)
@pytest.mark.parametrize("structure", ["kron", "diag"])
def test_other_structures_of_laplace_torch_are_refused_by_name(subset, structure):
    library = installed()
    if library is None:
        pytest.skip("laplace-torch is not installed")
    if (subset, structure) == ("all", "diag"):
        pytest.skip("independent weights are matched unit by unit, as a Bayesian network")
    X, y = class_rows()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = library.Laplace(network(), "classification", subset_of_weights=subset, hessian_structure=structure)
        model.fit(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.as_tensor(X), torch.as_tensor(y))))
    with pytest.raises(cs.errors.InputError, match=rf'a {type(model).__name__}.*`hessian_structure="full"`'):
        cs.fuse([model, copy.deepcopy(model)])


def scores_of(evaluation):
    return {score.name: (score.fused, score.own) for score in evaluation.scores}


@pytest.mark.parametrize("subset", SUBSETS)
def test_classifiers_are_compared_by_the_probabilities_that_they_predict(library, subset, tmp_path):
    sites = class_sites(library, subset)
    fusion, own = cs.fuse(sites), sites["site 0"]
    X, y = class_rows(600, seed=7)  # more than a batch
    evaluation = cs.evaluate(fusion, own, (X, y))
    P, Q = (model(torch.as_tensor(X)).numpy() for model in (fusion.model, own))
    losses = [-np.log(p[np.arange(len(y)), y].astype(float)) for p in (P, Q)]
    found = scores_of(evaluation)
    assert list(found) == ["cross-entropy", "accuracy"]
    np.testing.assert_allclose(found["cross-entropy"], [loss.mean() for loss in losses], rtol=1e-5)
    np.testing.assert_allclose(found["accuracy"], [100 * (p.argmax(axis=1) == y).mean() for p in (P, Q)])
    paired = losses[0] - losses[1]
    np.testing.assert_allclose(evaluation.difference.mean, paired.mean(), atol=1e-6)
    np.testing.assert_allclose(evaluation.difference.standard_error, paired.std(ddof=1) / np.sqrt(len(y)), rtol=1e-4)
    np.savez(tmp_path / "rows.npz", x=X, y=y)
    for rows in ((X, y), (torch.as_tensor(X), torch.as_tensor(y)), tmp_path / "rows.npz"):
        assert scores_of(cs.evaluate(fusion, own, rows)) == found
    assert scores_of(cs.evaluate(fusion, own, X, y)) == found


def log_normal(errors, covariances):
    """Return log densities by inversion and determinant."""
    c = errors.shape[1]
    squares = np.einsum("ni,nij,nj->n", errors, np.linalg.inv(covariances), errors)
    return -0.5 * (squares + np.log(np.linalg.det(covariances)) + c * np.log(2 * np.pi))


@pytest.mark.usefixtures("double")
def test_regressions_are_compared_by_the_log_density_of_bayesian_linear_regression(library):
    X, Y = linear_rows()
    train, held = np.arange(len(X)) % 4 != 0, np.arange(len(X)) % 4 == 0
    rows = [np.flatnonzero(train)[:6], np.flatnonzero(train)[6:]]
    sites = [linear_site(library, X[one], Y[one]) for one in rows]
    evaluation = cs.evaluate(cs.fuse(sites), sites[0], (X[held], Y[held]))
    expected, errors_of = [], []
    A = np.hstack([X[held], np.ones((held.sum(), 1))])
    for part in (np.concatenate(rows), rows[0]):
        mean, Lam = linear_law(X[part], Y[part], NOISE, np.asarray(2.0), np.asarray(0.0))
        J = np.zeros((len(A), OUTPUTS, len(mean)))
        for o in range(OUTPUTS):
            J[:, o, o * COLUMNS : (o + 1) * COLUMNS], J[:, o, OUTPUTS * COLUMNS + o] = X[held], 1.0
        errors = Y[held] - J @ mean
        covariances = np.einsum("nip,pq,njq->nij", J, np.linalg.inv(Lam), J) + NOISE**2 * np.eye(OUTPUTS)
        expected.append(log_normal(errors, covariances).mean())
        errors_of.append((errors**2).sum(axis=1).mean())
    found = scores_of(evaluation)
    assert list(found) == ["log density", "squared error"]
    np.testing.assert_allclose(found["log density"], expected, rtol=1e-7)
    np.testing.assert_allclose(found["squared error"], errors_of, rtol=1e-7)
    assert evaluation.better == "fused"  # than six rows


def test_a_fused_file_is_compared_with_the_network_of_the_site(library, tmp_path):
    sites = class_sites(library, "last_layer")
    rows = class_rows(seed=8)
    expected = scores_of(cs.evaluate(cs.fuse(sites), sites["site 0"], rows))
    for name, site in sites.items():
        cs.save(site, tmp_path / f"{name}.safetensors")
    fusion = cs.fuse(sorted(tmp_path.glob("site*.safetensors")))
    fusion.save(tmp_path / "fused.safetensors")
    for fused in (fusion, tmp_path / "fused.safetensors", cs.load(tmp_path / "fused.safetensors"), fusion.model):
        found = scores_of(cs.evaluate(fused, sites["site 0"], rows))
        np.testing.assert_allclose(found["cross-entropy"], expected["cross-entropy"], rtol=1e-5)
    own = scores_of(cs.evaluate(cs.fuse(sites), tmp_path / "site 0.safetensors", rows))
    np.testing.assert_allclose(own["cross-entropy"], expected["cross-entropy"], rtol=1e-4)
    np.savez(tmp_path / "rows.npz", x=rows[0], y=rows[1])
    paths = [str(tmp_path / name) for name in ("fused.safetensors", "site 0.safetensors", "rows.npz")]
    done = command("evaluate", *paths[:2], "--data", paths[2])
    assert done.code != 0
    assert "has no network in its file, so that it predicts nothing; compare in Python" in done.err
    assert len(done.err.strip().splitlines()) == 1, done.err
    with pytest.raises(cs.errors.UnsupportedError, match="compare in Python with your own"):
        cs.evaluate(*paths[:2], rows)
    elsewhere = changed_last_layers(library)[1]
    with pytest.raises(cs.errors.InputError, match="your own model: has other frozen weights or buffers"):
        cs.evaluate(fusion, elsewhere, rows)


BAD_ROWS = {
    "no classes": (lambda X, y: X, "data: has no y, which this model is fitted to"),
    "other columns": (lambda X, y: (X[:, :2], y), r"data: of shape \(256, 2\) a batch, do not fit the network"),
    "fewer classes": (
        lambda X, y: (X, y[:5]),
        r"labels: expected one class for each of the 300 rows, found shape \(5,\)",
    ),
    "a fourth class": (lambda X, y: (X, y + 1), "labels: row .* has 3, expected numbers of classes from 0 to 2"),
    "names": (lambda X, y: (X, np.array(["a"] * len(y))), "labels: expected numbers of classes from 0 to 2, found 'a'"),
    "no numbers": (lambda X, y: (X * np.nan, y), "data: has NaN or infinite entries"),
    "no rows": (lambda X, y: (X[:0], y[:0]), "data: expected rows"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_rows_that_do_not_fit_are_refused_by_name(library, case):
    sites = class_sites(library, "last_layer", 2)
    make, text = BAD_ROWS[case]
    with pytest.raises(cs.errors.InputError, match=text):
        cs.evaluate(cs.fuse(sites), sites["site 0"], make(*class_rows()))


def test_approximations_that_predict_other_things_are_not_compared(library):
    regression, classification = of_two_likelihoods(library)
    X, Y = linear_rows()
    with pytest.raises(
        cs.errors.InputError, match="your own model: has likelihood classification, expected regression"
    ):
        cs.evaluate(regression, classification, (X, Y))
    with pytest.raises(
        cs.errors.InputError, match=r"labels: expected 2 targets for each of the 240 rows, found \(240,\)"
    ):
        cs.evaluate(regression, regression, (X, Y[:, 0]))
    with pytest.raises(cs.errors.OptionError, match="module: is for networks and heads"):
        cs.evaluate(regression, regression, (X, Y), module=nn.Linear(2, 2))
