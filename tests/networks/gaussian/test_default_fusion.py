"""Laws of the default fusion of Bayesian networks: candidates, choice and verdict, with and without descriptions."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from consilience.networks.choice.sites import Sites
from consilience.networks.fuse_aligned import NetworkArguments
from consilience.networks.gaussian.choice.workshop import BayesianWorkshop
from tests.copies import COPIES
from tests.networks.gaussian.nets import digits, layers_of, network, random_layers, symmetry_of

X, Y = digits()
X = X.astype(np.float32)
HELD = np.arange(len(X)) % 3 == 0
CLASSES = {"lund": (0, 1, 2, 3, 4), "oslo": (4, 5, 6, 7), "turku": (7, 8, 9, 0)}
ROWS = {name: np.flatnonzero(~HELD & np.isin(Y, classes)) for name, classes in CLASSES.items()}
FAST = {"n_samples": 16, "n_inputs": 1500}


def learned(rows, seed, **options):
    options = {"hidden": (20,), "epochs": 25, "batch_size": 64, "learning_rate": 0.02, "temperature": 0.1, **options}
    return cs.learners.GaussianBNN(**options, seed=seed).fit(X[rows], Y[rows], classes=10).posterior


def scores(model):
    return cs.predictive_scores(model.predict(X[HELD], samples=16), Y[HELD])


def same_bytes(first, second):
    assert list(first.means) == list(second.means)
    return all(
        np.array_equal(np.asarray(getattr(first, what)[key]), np.asarray(values))
        for what in ("means", "variances")
        for key, values in getattr(second, what).items()
    )


@pytest.fixture(scope="module")
def bnns():
    return {name: learned(rows, seed) for seed, (name, rows) in enumerate(ROWS.items())}


@pytest.fixture(scope="module")
def described(bnns):
    return {name: cs.describe(bnn, (X[ROWS[name]], Y[ROWS[name]])) for name, bnn in bnns.items()}


@pytest.fixture(scope="module")
def fusion(described):
    return cs.fuse(described, **FAST)


def test_described_networks_become_one_that_is_better_than_each(fusion, bnns):
    fused, alone = scores(fusion.model), [scores(bnn) for bnn in bnns.values()]
    assert fused.accuracy > max(one.accuracy for one in alone) + 0.2
    assert fused.log_likelihood > max(one.log_likelihood for one in alone) + 0.5
    assert fusion.verdict.code == "labelled"
    assert "is better than every site's own network; whether on real ones too" in fusion.verdict.text
    assert fusion.verdict.text.startswith(f"Chosen: {fusion.details['chosen']}, with ")
    assert set(fusion.verdict.candidates) == set(fusion.candidates)
    assert same_bytes(fusion.model, fusion.candidates[fusion.details["chosen"]])


def test_the_chosen_network_is_never_scored_worse_than_a_site(fusion):
    of_sites = [score for name, score in fusion.verdict.candidates.items() if name.startswith("site:")]
    assert len(of_sites) == 3
    assert fusion.verdict.candidates[fusion.details["chosen"]] <= min(of_sites)


def test_scores_rank_candidates_as_real_inputs_do(fusion):
    true = {name: 1 - scores(bnn).accuracy for name, bnn in fusion.candidates.items()}
    best = min(true.values())
    assert true[fusion.details["chosen"]] < best + 0.03
    assert all(fusion.verdict.candidates[name] > 0.25 for name, error in true.items() if error > 0.4)


def test_the_same_seed_gives_the_same_bytes_in_whatever_order_the_sites_come(fusion, described):
    again = cs.fuse(dict(reversed(described.items())), **FAST)
    assert same_bytes(fusion.model, again.model)
    assert again.verdict == fusion.verdict


@pytest.mark.parametrize("widths", [(3, 5, 2), (3, 5, 4, 2)])
def test_without_descriptions_it_is_kl_fusion_to_the_last_bit(widths):
    rng = np.random.default_rng(0)
    models = [network(random_layers(widths, rng)) for _ in range(3)]
    options = {"symmetry": symmetry_of(layers_of(models[0])), "restarts": 2, "rng": 5}
    plain, kl = cs.fuse(models, **options), cs.fuse(models, "kl", **options)
    assert same_bytes(plain.model, kl.model)
    assert (plain.verdict.code, plain.verdict.harmless, plain.verdict.candidates) == ("no_inputs", None, {})
    assert "consilience.save(net, path, data=loader)" in plain.verdict.remedy
    assert plain.details["chosen"] == "kl"


@COPIES
def test_equal_networks_come_back(described):
    fusion = cs.fuse([described["lund"], described["lund"]], **FAST)
    assert fusion.details["chosen"].startswith("site:")
    assert same_bytes(fusion.model, described["lund"])
    assert np.array_equal(fusion.model.predict(X[:9], 4, 1), described["lund"].predict(X[:9], 4, 1))


def test_a_site_that_is_chosen_is_returned_unchanged_and_saved_with_its_symmetry(described, tmp_path):
    rows = ROWS["lund"][:250]
    weak = {"much": described["lund"], "little": cs.describe(learned(rows, 9, epochs=1), (X[rows], Y[rows]))}
    fusion = cs.fuse(weak, **FAST)
    assert fusion.verdict.code == "site"
    assert fusion.details["chosen"] == "site:much"
    assert same_bytes(fusion.model, described["lund"])
    fusion.save(tmp_path / "fused.safetensors")
    loaded = cs.load(tmp_path / "fused.safetensors")
    assert same_bytes(loaded, described["lund"])
    assert loaded.symmetry is not None
    assert [path.name for path in tmp_path.iterdir()] == ["fused.safetensors"]  # nothing that a site says of its data


def test_counts_alone_choose_the_site_that_covers_the_classes_best(described):
    silent = {}
    for name, one in described.items():
        said = one.description
        counts = cs.Description(said.digest, said.n_observations, classes=said.classes, class_counts=said.class_counts)
        silent[name] = replace(one, description=counts)
    fusion = cs.fuse(silent)
    assert fusion.details["chosen"] == "site:lund"  # it holds most classes, and most observations
    assert same_bytes(fusion.model, described["lund"])
    assert fusion.verdict.harmless is None


def test_networks_of_one_start_are_averaged_as_they_are_numbered_too(bnns):
    rows = [np.flatnonzero(~HELD)[part::2] for part in (0, 1)]
    one_start = [cs.describe(learned(of_site, seed=3, epochs=3), (X[of_site], Y[of_site])) for of_site in rows]
    fusion = cs.fuse(one_start, **FAST)
    assert {"average", "precision", "class_heads(precision)"} <= set(fusion.verdict.candidates)
    average = cs.fuse(one_start, "average")
    assert same_bytes(fusion.candidates["average"], average.model)


def test_bounds_on_the_number_of_units_leave_out_what_is_wider(described):
    fusion = cs.fuse(described, max_units=25, **FAST)
    assert not [name for name in fusion.verdict.candidates if "side_by_side" in name]
    assert max(bnn.means["0.weight"].shape[0] for bnn in fusion.candidates.values()) <= 25
    fixed = cs.fuse(described, target_widths={"0": 30}, **FAST)
    assert not [name for name in fixed.candidates if name.startswith("site:")]
    assert "is better than every site's own network; whether on real ones too" in fixed.verdict.text


def test_a_bound_on_time_says_what_it_left_out(described):
    fusion = cs.fuse(described, max_seconds=1e-9, **FAST)
    assert "w2 was left out: 1e-09 seconds had passed" in fusion.verdict.text
    assert {name for name in fusion.verdict.candidates if not name.startswith("site:")} == {"kl"}


def test_unlabelled_inputs_compare_by_the_ensemble(bnns):
    fusion = cs.fuse(bnns, inputs=torch.tensor(X[HELD][:300]), **FAST)
    assert fusion.verdict.criterion == "disagreement with the sites' ensemble"
    assert fusion.verdict.harmless is None
    with pytest.raises(cs.errors.OptionError, match="inputs: of no use for Bayesian networks"):
        cs.fuse(bnns, "kl", inputs=torch.tensor(X[HELD][:300]))


def test_files_with_descriptions_beside_them_are_enough(bnns, fusion, tmp_path):
    for name, bnn in bnns.items():
        cs.save(bnn, tmp_path / f"{name}.safetensors", data=(X[ROWS[name]], Y[ROWS[name]]))
    files = [tmp_path / f"{name}.safetensors" for name in bnns]
    assert cs.check(files) == []
    of_files = cs.fuse(files, module=bnns["lund"].module, **FAST)
    assert of_files.verdict.candidates == fusion.verdict.candidates
    of_files.save(tmp_path / "fused.safetensors")
    of_files.report(tmp_path / "report.html")
    assert "What was chosen among" in (tmp_path / "report.html").read_text()
    with pytest.raises(cs.errors.OptionError, match="module: is needed: the default compares networks"):
        cs.fuse(files)


def test_networks_that_do_not_classify_are_not_compared():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 3))
    models = [network(random_layers((3, 5, 2), rng)) for _ in range(2)]
    described = [cs.describe(model, (rows, rng.normal(size=(200, 2)))) for model in models]
    fusion = cs.fuse(described)
    assert "sites describe no classes" in fusion.verdict.text
    assert fusion.details["chosen"] == "kl"
    assert fusion.verdict.remedy == "name a method, such as 'kl'"


# -- Rows of the output layer by class


def workshop(models, counts, method=None):
    """Return a default fusion at work on sites that say counts of classes."""
    from consilience.core.inputs import name_inputs
    from consilience.networks.gaussian.methods import BayesianAuto
    from consilience.networks.gaussian.shared_symmetry import describe_bayesian_networks

    example = torch.zeros(2, models[0].means["0.weight"].shape[1], dtype=torch.float64)
    inputs = name_inputs(models)
    shared = describe_bayesian_networks(inputs, symmetry_of(layers_of(models[0])), None, None, np.random.default_rng(0))
    names = tuple(f"class {number}" for number in range(len(counts[0])))
    said = tuple(
        cs.Description(bnn.digest, float(sum(row)), classes=names, class_counts=np.array(row, dtype=float))
        for bnn, row in zip(models, counts, strict=True)
    )
    sizes = np.array([sum(row) for row in counts], dtype=float)
    sites = Sites(tuple(f"site {number}" for number in range(len(models))), sizes / sizes.sum(), said)
    method = BayesianAuto() if method is None else method
    arguments = NetworkArguments(example=example)
    return BayesianWorkshop(shared, sites, arguments, None, method, np.random.default_rng(0), lambda *_: None)


def candidates_of(work):
    return {"kl": work.base_candidate, **{name: make() for name, make in work.averages()}}


def test_rows_by_class_are_averages_by_precision_and_by_the_sites_shares():
    rng = np.random.default_rng(4)
    first = random_layers((3, 5, 4), rng)
    near = [(m + 0.01 * rng.normal(size=m.shape), v, b + 0.01, bv) for m, v, b, bv in first]
    counts = [[30, 0, 20, 0], [10, 40, 20, 0]]
    made = candidates_of(workshop([network(first), network(near)], counts))["class_heads(precision)"].module
    shares = np.array([[0.75, 0.0, 0.5, 5 / 12], [0.25, 1.0, 0.5, 7 / 12]])  # of a class that nobody has: by n
    last = [centred(layers)[-1] for layers in (first, near)]
    for weight, (mean, variance) in enumerate(((0, 1), (2, 3))):
        expand = shares[:, :, None] if weight == 0 else shares
        precision = sum(w / part[variance] for w, part in zip(expand, last, strict=True))
        linear = sum(w * part[mean] / part[variance] for w, part in zip(expand, last, strict=True))
        found = layers_of(made)[-1]
        np.testing.assert_allclose(found[mean], linear / precision, rtol=1e-10)
        np.testing.assert_allclose(found[variance], 1 / precision, rtol=1e-10)
    hidden = layers_of(candidates_of(workshop([network(first), network(near)], counts))["precision"].module)[0]
    for one, other in zip(layers_of(made)[0], hidden, strict=True):  # the layers before are left as they are
        np.testing.assert_allclose(one, other, rtol=1e-12)


def centred(layers):
    """Return layers whose output means are centred over the classes."""
    mean, variance, bias, bias_variance = layers[-1]
    return [*layers[:-1], (mean - mean.mean(0), variance, bias - bias.mean(), bias_variance)]


@pytest.mark.parametrize("seed", range(3))
def test_where_sites_have_equal_proportions_rows_by_class_predict_the_same(seed):
    rng = np.random.default_rng(seed)
    models = [network(centred(random_layers((3, 6, 4), rng))) for _ in range(3)]
    made = candidates_of(workshop(models, [[10, 20, 30, 40], [20, 40, 60, 80], [5, 10, 15, 20]]))
    inputs = rng.normal(size=(20, 3))
    for name in ("kl", "side_by_side"):
        plain, by_class = made[name].module, made[f"class_heads({name})"].module
        found, expected = by_class.predict(inputs, samples=8), plain.predict(inputs, samples=8)
        np.testing.assert_allclose(found, expected, atol=1e-9)


def test_side_by_side_the_mean_network_answers_the_sites_class_weighted_logits():
    rng = np.random.default_rng(2)
    sites = [random_layers((3, 5, 3), rng) for _ in range(2)]
    for layers in sites:  # biases are averaged by precision, which is to tell nothing here
        layers[-1] = (*layers[-1][:3], np.ones(3))
    models = [network(layers) for layers in sites]
    counts = np.array([[30.0, 10, 0], [10, 30, 20]])
    wide = candidates_of(workshop(models, counts.tolist()))["class_heads(side_by_side)"].module
    inputs = torch.tensor(rng.normal(size=(12, 3)))
    logits = np.stack([bnn.mean_module()(inputs).detach().numpy() for bnn in models])
    centred = logits - logits.mean(axis=2, keepdims=True)
    expected = np.einsum("jc,jnc->nc", counts / counts.sum(0), centred)
    np.testing.assert_allclose(wide.mean_module()(inputs).detach().numpy(), expected, atol=1e-5)


# -- The ensemble


def test_the_ensemble_pools_predictions_by_the_counts_of_classes(fusion, bnns):
    counts = np.array([np.bincount(Y[rows], minlength=10) for rows in ROWS.values()], dtype=float)
    ensemble = fusion.ensemble
    np.testing.assert_allclose(ensemble.class_counts, counts, rtol=1e-6)
    streams = np.random.default_rng(7).spawn(3)
    own = np.stack([bnn.predict(X[:40], 8, stream) for bnn, stream in zip(bnns.values(), streams, strict=True)])
    shares = counts / counts.sum(0)
    chains = np.einsum("jc,inc->nji", shares, own)  # from site to site, of each input; columns sum to 1
    mixed = 0.001 * shares @ (counts.sum(0) / counts.sum())
    of_sites = np.linalg.solve(np.eye(3) - 0.999 * chains, np.broadcast_to(mixed, (40, 3))[:, :, None])[:, :, 0]
    expected = np.einsum("nj,jnc->nc", of_sites, own)
    np.testing.assert_allclose(ensemble.predict(X[:40], samples=8, rng=7), expected, atol=1e-6)


def test_a_prior_that_was_removed_is_put_back(described):
    said = {name: replace(one.description, class_prior="removed") for name, one in described.items()}
    adjusted = {name: replace(one, description=said[name]) for name, one in described.items()}
    own, put_back = (cs.fuse(models, "ensemble").model for models in (described, adjusted))
    assert own.class_counts is not None
    for ensemble, prior in ((own, "own"), (put_back, "removed")):
        assert ensemble.class_priors == (prior,) * 3
    assert not np.allclose(own.predict(X[:20], 4), put_back.predict(X[:20], 4), atol=1e-3)


def test_a_module_without_a_linear_head_has_no_rows_by_class():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3), nn.LogSoftmax(dim=1)).double()
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    rows = rng.normal(size=(300, 3)) + 2 * np.eye(3)[labels]
    models = []
    for seed in range(2):
        torch.manual_seed(seed)
        means = {key: value.detach() + torch.randn_like(value) for key, value in module.named_parameters()}
        bnn = cs.BayesianNetwork(module, means, {key: torch.full_like(value, 0.01) for key, value in means.items()})
        models.append(cs.describe(bnn, (rows, labels)))
    fusion = cs.fuse(models, **FAST)
    assert "class_heads(kl) was left out: the networks do not end in a linear layer" in fusion.verdict.text
