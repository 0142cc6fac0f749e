"""Bad input of draws: found, expected, what to do."""

import re

import numpy as np
import pytest

import consilience as cs
from tests.draws.sites import gaussian_sites


def draws(seed=0, *, shape=(2, 200, 2), **told):
    told = {"prior": 0.5, **told}
    return cs.Draws({"beta": np.random.default_rng(seed).normal(size=shape)}, **told)


def other(**changes):
    rng = np.random.default_rng(1)
    return cs.Draws({name: rng.normal(size=(2, 200, *shape)) for name, shape in changes.items()}, prior=0.5)


def with_value(value):
    values = np.random.default_rng(1).normal(size=(2, 200, 2))
    values[1, 7, 0] = value
    return cs.Draws({"beta": values}, prior=0.5)


PAIRS = {
    r"oslo: has the variables gamma, expected beta as in lund; fit the same model, or choose with `only=": lambda: (
        other(gamma=(2,))
    ),
    r"oslo: beta has shape (3,), expected (2,) as in lund; fit the same model": lambda: other(beta=(3,)),
    "oslo: beta has the dims school, expected beta_dim_0 as in lund; name axes alike: `dims={'beta': ('beta_dim_0'": (
        lambda: draws(1, dims={"beta": ("school",)})
    ),
    "oslo: does not say what of the prior its draws hold, and lund does; state `prior=` there too": lambda: draws(
        1, prior=None
    ),
    "oslo: states a prior that is flat, expected a power as in lund; sample all sites alike": lambda: draws(
        1, prior="flat"
    ),
    "oslo: states jacobian shared, expected once": lambda: draws(1, jacobian="shared"),
    "oslo: states likelihood_power 2.0, expected 1.0": lambda: draws(1, likelihood_power=2),
    "oslo: beta: is nan in draw 7 of chain 1, expected finite numbers": lambda: with_value(np.nan),
    "oslo: beta: is inf in draw 7 of chain 1, expected finite numbers": lambda: with_value(np.inf),
    "oslo: has chains of 50 draws, expected at least 100; sample longer chains": lambda: draws(1, shape=(2, 50, 2)),
    "oslo: beta: lies outside of its constraint, positive, in draw 1 of chain 0": lambda: cs.Draws(
        {"beta": np.where(np.arange(200)[:, None] == 1, -1.0, np.ones((2, 200, 2)))},
        prior=0.5,
        constraints={"beta": "positive"},
    ),
    "oslo: has the same value in all draws of beta[0], beta[1]; give draws of its parameters": lambda: cs.Draws(
        {"beta": np.ones((2, 200, 2))}, prior=0.5
    ),
}


@pytest.mark.parametrize("message", PAIRS)
def test_sites_that_do_not_go_together_are_refused(message):
    sites = {"lund": draws(), "oslo": PAIRS[message]()}
    with pytest.raises(cs.errors.InputError, match=re.escape(message)):
        cs.fuse(sites)
    assert any(message in problem for problem in cs.check(sites))


def test_the_site_that_does_not_state_its_prior_is_the_one_that_is_named():
    with pytest.raises(
        cs.errors.InputError, match=r"^lund: does not say what of the prior its draws hold, and oslo does"
    ):
        cs.fuse({"lund": draws(prior=None), "oslo": draws(1)})


def test_variables_that_are_functions_of_others_are_named():
    rng = np.random.default_rng(2)

    def site():
        mu, tau, free = rng.normal(size=(2, 200, 3)), rng.gamma(9.0, size=(2, 200)), rng.normal(size=(2, 200))
        variables = {"mu": mu, "free": free, "tau": tau, "variance": tau**2, "total": mu.sum(axis=-1)}
        positive = {"tau": "positive", "variance": "positive"}
        return cs.Draws(variables, prior=0.5, constraints=positive)

    named = r"functions of each other \(mu\[0\], mu\[1\], mu\[2\], tau, variance, ... \(6\)\), so that their covariance"
    with pytest.raises(cs.errors.InputError, match=f"^lund: has variables that are {named}.*only="):
        cs.fuse({"lund": site(), "oslo": site()})
    fused = cs.fuse({"lund": site(), "oslo": site()}, only=("mu", "tau", "free"))
    assert list(fused.draws.variables) == ["mu", "free", "tau"]


@pytest.mark.parametrize("method", ["gaussian_product", "semiparametric", "hierarchical"])
def test_chains_that_were_taken_though_they_diverged_are_said(method):
    diverging = np.zeros((2, 200), dtype=bool)
    diverging[1, :30] = True
    sites = {"lund": draws(0, diverging=diverging), "oslo": draws(1)}
    with pytest.raises(cs.errors.InputError, match=r"^lund: chain 1: diverged in 15.0 % of its draws"):
        cs.fuse(sites, method)
    verdict = cs.fuse(sites, method, allow_divergent=True).verdict
    assert verdict.code == "doubtful"
    assert "lund: chain 1 diverged in 15.0 % of its draws, more than 1 %" in verdict.text
    assert "sample again" in verdict.remedy


@pytest.mark.parametrize("method", [None, "gaussian_product", "semiparametric", "hierarchical"])
def test_a_site_that_is_given_twice_is_doubted(method):
    sites = {"lund": draws(0), "oslo": draws(0), "riga": draws(1)}
    with pytest.warns(cs.errors.TwiceWarning, match="^oslo: has the same contents as lund: it counts twice"):
        assert not cs.check(sites, method, allow_divergent=True)
    values = [site.variables["beta"] for site in sites.values()]
    sites["oslo"] = cs.Draws({"beta": np.stack([values[2][1], draws(5).variables["beta"][0]])}, prior=0.5)
    with pytest.warns(cs.errors.TwiceWarning, match=r"^riga: has in chain 1 the same draws as oslo in chain 0"):
        assert not cs.check(sites, method)


def test_the_sign_of_a_zero_does_not_tell_draws_apart():
    values = draws(0).variables["beta"].copy()
    values[:, 3] = 0.0
    plain, signed = (cs.Draws({"beta": np.where(values == 0.0, zero, values)}, prior=0.5) for zero in (0.0, -0.0))
    assert np.any(np.signbit(signed.variables["beta"]) & (values == 0.0))
    assert plain.digest == signed.digest
    with pytest.warns(cs.errors.TwiceWarning, match=r"^oslo: has the same contents as lund"):
        cs.fuse({"lund": plain, "oslo": signed})


def test_a_chain_that_is_given_twice_or_never_moved_is_refused_by_its_number():
    values = draws(0).variables["beta"]
    twice, stuck = np.stack([values[0], values[1], values[0]]), np.concatenate([values, values])[:3].copy()
    stuck[2] += np.random.default_rng(9).normal(size=stuck[2].shape)
    stuck[2, :, 1] = 0.1
    lund = cs.Draws({"beta": twice}, prior=0.5)
    with pytest.raises(
        cs.errors.InputError, match=r"^lund: chain 2: has the same draws as chain 0; give every chain once"
    ):
        cs.fuse({"lund": lund, "oslo": draws(1)})
    verdict = cs.fuse({"lund": lund, "oslo": draws(1)}, allow_divergent=True).verdict
    assert "lund: chain 2 has the same draws as chain 0" in verdict.text
    lund = cs.Draws({"beta": stuck}, prior=0.5)
    with pytest.raises(cs.errors.InputError, match=r"lund: chain 2: has the same value in all its draws of beta\[1\]"):
        cs.fuse({"lund": lund, "oslo": draws(1)})


def test_arrays_by_name_are_told_to_become_draws():
    text = r"is a mapping of arrays \(beta\), which could be anything; of posterior draws, say so: `consilience\.Draws"
    with pytest.raises(cs.errors.UnsupportedError, match=text):
        cs.describe({"beta": np.zeros((2, 200))})
    with pytest.raises(cs.errors.InputError, match=f"^lund, oslo: each {text}"):
        cs.fuse({name: {"beta": np.zeros((2, 200))} for name in ("lund", "oslo")})


def test_labels_of_axes_must_agree():
    sites = {
        name: draws(seed, dims={"beta": ("school",)}, coords={"school": labels})
        for seed, (name, labels) in enumerate({"lund": ["x", "y"], "oslo": ["y", "z"]}.items())
    }
    with pytest.raises(
        cs.errors.InputError, match=r"oslo: labels school \['y', 'z'\], expected \['x', 'y'\] as in lund"
    ):
        cs.fuse(sites)


def test_variables_in_another_order_are_matched_by_name():
    rng = np.random.default_rng(0)
    values = {"a": rng.normal(size=(2, 300)), "b": 5 + rng.normal(size=(2, 300))}
    turned = {name: values[name] + 0.1 for name in ("b", "a")}
    fused = cs.fuse([cs.Draws(values, prior=0.5), cs.Draws(turned, prior=0.5)]).draws
    assert abs(fused.variables["b"].mean() - 5.05) < 0.1


def test_the_prior_must_be_stated_and_its_powers_add_up():
    with pytest.raises(
        cs.errors.InputError, match=r"raised to 1/2 and state `prior=1/2`, or state its distribution by variable"
    ):
        cs.fuse([draws(prior=None), draws(1, prior=None)])
    with pytest.raises(cs.errors.OptionError, match=r"prior: found 3, expected the power to which sites raised it"):
        draws(prior=3)
    with pytest.raises(
        cs.errors.InputError, match=r"prior: says nothing of beta; give its distribution, or 'flat', too"
    ):
        draws(prior={})
    with pytest.raises(cs.errors.InputError, match=r"prior of beta: is 'gauss', expected one of flat, normal"):
        draws(prior={"beta": ("gauss", 0, 1)})
    with pytest.raises(cs.errors.InputError, match=r"prior of beta: normal takes mean, sd, found \[0\]"):
        draws(prior={"beta": ("normal", 0)})
    with pytest.raises(cs.errors.InputError, match=r"prior of beta: has sd -1, expected a positive number"):
        draws(prior={"beta": ("normal", 0, -1)})
    fusion = cs.fuse([draws(prior=0.2), draws(1, prior=0.2)])
    assert "the prior counts 0.4 times" in fusion.verdict.text
    assert "1/2" in fusion.verdict.remedy


def test_too_few_draws_say_which_method_still_works():
    sites = gaussian_sites(2, dim=50, n_draws=240)[0]
    message = "has 240 draws of 50 coordinates, and consensus_mc needs 250 for its covariance"
    with pytest.raises(cs.errors.InputError, match=f"{message}.*consensus_mc with `covariance='diagonal'` still works"):
        cs.fuse(sites, "consensus_mc")
    fusion = cs.fuse(sites, "consensus_mc", covariance="diagonal", allow_divergent=True)
    assert fusion.draws.n_draws == 240


def test_functions_of_other_variables_are_named_and_only_leaves_them_out():
    rng = np.random.default_rng(0)
    sites = []
    for _ in range(2):
        beta = rng.normal(size=(2, 300))
        sites.append(cs.Draws({"beta": beta, "twice": 2 * beta}, prior=0.5))
    with pytest.raises(cs.errors.InputError, match=r"functions of each other.*only=\(...\)"):
        cs.fuse(sites)
    fusion = cs.fuse(sites, only=("beta",))
    assert list(fusion.draws.variables) == ["beta"]
    assert fusion.draws.dropped == ("twice",)
    with pytest.raises(cs.errors.InputError, match="names gamma, which is no variable"):
        cs.fuse(sites, only=("gamma",))


def test_arguments_that_mean_nothing_are_refused():
    sites = [draws(0), draws(1)]
    with pytest.raises(cs.errors.OptionError, match="weights"):
        cs.fuse(sites, weights=[1, 2])
    with pytest.raises(cs.errors.OptionError, match=r"'average' is for .*, not for draws; give one of auto"):
        cs.fuse(sites, "average")
    with pytest.raises(cs.errors.OptionError, match="has no option damping"):
        cs.fuse(sites, "auto", damping=1.0)
    with pytest.raises(cs.errors.OptionError, match="option n_draws must be a positive integer"):
        cs.fuse(sites, "auto", n_draws=0)
    with pytest.raises(cs.errors.InputError, match="at least two"):
        cs.fuse(sites[:1])
    with pytest.raises(cs.errors.OptionError, match="engine"):
        cs.fuse(sites, engine=object())
    with pytest.raises(cs.errors.InputError, match="is about 3 observations, fewer than 5: nothing may leave"):
        cs.fuse([draws(0, n_observations=3), draws(1, n_observations=30)])
    assert cs.fuse([draws(0, n_observations=3), draws(1, n_observations=30)], min_count=0).draws.n_observations == 33
    with pytest.raises(
        cs.errors.OptionError, match="constraints: of beta: found 'round', expected one of real, positive"
    ):
        draws(constraints={"beta": "round"})
    with pytest.raises(cs.errors.InputError, match=r"beta: has shape \(2,\), which no covariance has"):
        draws(constraints={"beta": "covariance"})
    with pytest.raises(cs.errors.OptionError, match="n_observations: expected a positive number"):
        draws(n_observations=-1)
    with pytest.raises(cs.errors.InputError, match=r"diverging: has shape \(2, 3\), expected \(2, 200\)"):
        draws(diverging=np.zeros((2, 3)))


def test_few_rows_for_each_parameter_are_said():
    fusion = cs.fuse({"lund": draws(0, n_observations=30), "oslo": draws(1, n_observations=500)})
    assert "lund has fewer than 20 rows for each parameter" in fusion.verdict.text
    assert fusion.verdict.code == "doubtful"
    assert cs.fuse([draws(0, n_observations=300), draws(1, n_observations=500)]).verdict.code == "fine"


def test_files_that_are_broken_are_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    cs.save(draws(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    with pytest.raises(cs.errors.FileFormatError, match=r"truncated|cannot be read|ends before"):
        cs.load(path)
    for old, new, message in (
        (b'"constraint": "real"', b'"constraint": "reel"', "expected one of real, positive"),
        (b'"container": "mapping"', b'"container": "mopping"', "has draws in a 'mopping'"),
        (b'"format_version": 1', b'"format_version": 9', "format version 9"),
        (b'"jacobian": "once"', b'"jacobian": "none"', "not valid at jacobian"),
    ):
        assert old in whole.replace(b'\\"', b'"')
        escaped = [text.replace(b'"', b'\\"') for text in (old, new)]
        path.write_bytes(whole.replace(*escaped))
        with pytest.raises(cs.errors.InputError, match=message):
            cs.load(path)


def test_a_variable_whose_name_speaks_of_the_prior_is_compared_with_a_reference():
    rng = np.random.default_rng(2)
    sites = [cs.Draws({"prior_scale": rng.normal(size=(2, 300, 2))}, prior="flat") for _ in range(2)]
    with pytest.raises(
        cs.errors.InputError, match=r"prior_scale has shape \(2,\), expected \(3,\) as in the reference"
    ):
        cs.evaluate(cs.fuse(sites), sites[0], cs.Draws({"prior_scale": rng.normal(size=(2, 300, 3))}))
