"""Thirty mistakes of a newcomer, in Python and in the shell, and the message that each gets.

A statistician with files of hospitals, and an engineer who knows mergekit: what they try first, and what teaches them.
"""

import pickle
import re

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import consilience as cs
from tests.checkpoints.some_adapters import factors, write_adapter
from tests.checkpoints.some_checkpoints import tensors, write
from tests.cli.running import command
from tests.networks.language_models import LanguageModel


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with what newcomers have: files of two sites, a table, checkpoints, adapters, recipes."""
    folder = tmp_path_factory.mktemp("newcomer")
    for model, name in zip(mixtures(), ("lund", "oslo"), strict=True):
        cs.save(model, folder / f"{name}.safetensors")
    np.savetxt(folder / "patients.csv", np.ones((3, 2)), delimiter=",", header="Age,bmi", comments="")
    llama = {"model_type": "llama", "rope_theta": 10000.0}
    for seed, (name, config) in enumerate(
        (("law", llama), ("medicine", llama), ("mistral", llama | {"rope_theta": 1e6}))
    ):
        write(folder / name, tensors(seed), config)
    for seed, name in enumerate(("adapter-law", "adapter-medicine")):
        write_adapter(folder / name, factors(seed))
    write_adapter(folder / "adapter-dora", factors(3), use_dora=True)
    (folder / "recipe.yaml").write_text("models: [lund.safetensors, oslo.safetensors]\nmetod: kl\n")
    (folder / "merge.yaml").write_text("models: [law, medicine]\nmetod: ties\n")
    (folder / "della.yaml").write_text("models: [{model: law}]\nmerge_method: della\nbase_model: medicine\n")
    (folder / "model.pkl").write_bytes(pickle.dumps(list(range(99))))
    return folder


def rows():
    return np.random.default_rng(0).normal(size=(100, 2)) + np.repeat([[0.0, 0.0], [8.0, 8.0]], 50, axis=0)


def mixtures(**options):
    return [BayesianGaussianMixture(n_components=2, random_state=seed).fit(rows()) for seed in range(2)]


def chains():
    return np.random.default_rng(0).normal(size=(2, 100, 2))


def forests():
    return [RandomForestClassifier(2).fit(rows(), np.repeat([0, 1], 50)) for _ in range(2)]


class Undecided(torch.nn.Module):
    """A module whose path depends on numbers."""

    def forward(self, x):
        return x if float(x.sum()) > 0 else -x


def described(width):
    """Return a network with its description."""
    net = torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.ReLU(), torch.nn.Linear(width, 2))
    return cs.describe(
        net, (torch.as_tensor(rows(), dtype=torch.float32), torch.arange(100) % 2), classes=["no", "yes"]
    )


def narrow():
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))


IN_PYTHON = {
    "the seed as in NumPy": (lambda: cs.fuse(mixtures(), seed=0), r"no option seed, did you mean rng\?.*\[E-OPTION\]"),
    "the seed as in scikit-learn": (lambda: cs.fuse(mixtures(), random_state=0), r"random_state, did you mean rng\?"),
    "the number of clusters": (lambda: cs.fuse(mixtures(), n_clusters=2), r"n_clusters, did you mean n_components\?"),
    "the number of clusters, short": (lambda: cs.fuse(mixtures(), k=2), r"no option k, did you mean n_components\?"),
    "the method as in mergekit": (lambda: cs.fuse(mixtures(), merge_method="kl"),
        r"merge_method, did you mean method\?"),
    "British spelling": (lambda: cs.fuse(mixtures(), regularisation=1.0),
        r"did you mean regularization\?.*\[E-OPTION\]"),
    "a misspelt method": (lambda: cs.fuse(mixtures(), "spham"), r"did you mean spahm\?; there are kl, .* \[E-METHOD\]"),
    "a method for networks": (lambda: cs.fuse(mixtures(), "consensus"),
        r"'consensus' is for networks, not for posteriors; give one of kl, .*\[E-METHOD\]$"),
    "a method for checkpoints": (lambda: cs.fuse(mixtures(), "ties"),
        r"'ties' is for checkpoints \(`consilience\.merge\(\.\.\.\)`\), not for posteriors; .*\[E-METHOD\]$"),
    "a method for mixtures": (lambda: cs.fuse([narrow(), narrow()], "spahm"),
        r"'spahm' is for posteriors of statistical models, not for networks; .*\[E-METHOD\]$"),
    "a fitted attribute of a fusion": (lambda: cs.fuse(mixtures()).means_,
        r"the fused model may have it, as fusion\.model\.means_ \[E-ATTRIBUTE\]$"),
    "arguments of save in the other order": (lambda: cs.save("lund.safetensors", mixtures()[0]),
        r"^path: stands before the model; write `consilience\.save\(model, path\)` \[E-TYPE\]$"),
    "a column more": (lambda: cs.fuse([mixtures()[0], cs.describe(
        BayesianGaussianMixture(n_components=2, random_state=0).fit(np.c_[rows(), rows()]), n_observations=100)]),
        r"^model 1: has 4 columns, expected 2 as in model 0 \[E-MISMATCH\]$"),
    "networks whose first layer says no input": (
        lambda: cs.fuse([torch.nn.Sequential(torch.nn.Bilinear(2, 2, 3)) for _ in range(2)]),
        r"^example: none could be derived from the first layer; give an input: `example=x` \[E-NEEDED\]$"),
    "forests": (lambda: cs.fuse(forests()),
        r"^model 0, model 1: each is a RandomForestClassifier: it is made of splits .*; average what the models predict"
        r".*\[E-MODEL\]$"),
    "a pipeline with a forest": (lambda: cs.fuse([make_pipeline(StandardScaler(), one) for one in forests()]),
                                 r"is a RandomForestClassifier: it is made of splits .*\[E-MODEL\]$"),
    "the class instead of a model": (lambda: cs.fuse([BayesianGaussianMixture] * 2),
                                     r"is the class BayesianGaussianMixture, .*; make one and fit it: .*\[E-MODEL\]$"),
    "a model that was not fitted": (lambda: cs.fuse([BayesianGaussianMixture()] * 2),
                                    r"this BayesianGaussianMixture is not fitted yet; call fit first \[E-UNFITTED\]$"),
    "the data instead of a model": (lambda: cs.fuse([rows(), rows()]),
        r"is data \(numpy\.ndarray\).*consilience\.describe.*\[E-DATA\]$"),
    "a table instead of a model": (lambda: cs.load("patients.csv"),
        r"patients\.csv: is a table of data.*consilience\.describe.*consilience\.evaluate.*\[E-DATA\]$"),
    "one model": (lambda: cs.fuse(mixtures()[0]),
        r"expected a list of models.*; give two or more in a list.*\[E-COUNT\]$"),
    "one model in a list": (lambda: cs.fuse(mixtures()[:1]), r"at least two models, found 1; give .*\[E-COUNT\]$"),
    "a file that is not there": (lambda: cs.fuse(["lund.safetensors", "osloo.safetensors"]),
        r"osloo\.safetensors: cannot be read: .*; give oslo\.safetensors, if that was meant \[E-MISSING\]$"),
    "a pickle": (lambda: cs.load("model.pkl"),
        r"model\.pkl: is a pickle.*never loaded; write it with consilience\.save where it was trained \[E-FILE\]$"),
    "a fusion in a file": (lambda: cs.save(cs.fuse(mixtures()), "fused.safetensors"),
        r"is a PosteriorFusion, expected one model; take fusion\.model.*fusion\.save\(path\)` \[E-MODEL\]$"),
    "rebuild a network": (lambda: cs.rebuild(described(3)),
        r"a Network: is no Posterior.*load_state_dict\) \[E-REBUILD\]$"),
    "a function of another name": (lambda: cs.aggregate,
        r"has no attribute 'aggregate', did you mean fuse\? \[E-ATTRIBUTE\]$"),
    "a fusion as a model": (lambda: cs.fuse(mixtures()).predict(rows()),
        r"^PosteriorFusion has no attribute 'predict'; the fused model may have it, as fusion\.model\.predict \["),
    "a misspelt attribute": (lambda: cs.fuse(mixtures()).n_componets,
        r"no attribute 'n_componets', did you mean n_components\? \[E-ATTRIBUTE\]$"),
    "a posterior as a model": (lambda: cs.load("lund.safetensors").mean_, r"^Posterior has no attribute 'mean_'"),
    "all models where one is compared": (
        lambda: cs.evaluate(cs.fuse(mixtures()), dict(zip("ab", mixtures(), strict=True)), rows()),
        r"^your own model: expected one model, found a dict of 2; .*such as models\['a'\] \[E-COUNT\]$"),
    "models that do not say their observations": (
        lambda: cs.fuse({name: GaussianMixture(2, random_state=0).fit(rows()) for name in ("lund", "oslo", "åbo")}),
        r"^lund, oslo, åbo: each does not say how many observations.*\[E-OBSERVATIONS\]$"),
    "estimators without their sums": (
        lambda: cs.fuse({name: LinearRegression().fit(rows(), rows()[:, 0]) for name in ("lund", "oslo")}),
        r"^lund, oslo: a LinearRegression: does not keep the sums.*\[E-DESCRIBE\]$"),
    "models of two classes": (
        lambda: cs.fuse({"lund": mixtures()[0], "oslo": KMeans(2, n_init=1).fit(rows())}),
        r"^oslo: has kind 'sklearn\.KMeans', expected 'sklearn\.BayesianGaussianMixture' as in lund.*\[E-MISMATCH\]$"),
    "a narrower target": (lambda: cs.fuse([described(6), described(6)], target=narrow()),
                          r"needs room for the widest model.*; give `method='distill'.*\[E-NARROWER\]$"),
    "a module that decides by numbers": (lambda: cs.symmetry(Undecided(), torch.ones(2)),
        r"^Undecided cannot be exported .*; write its forward without decisions.*\[E-TRACE\]$"),
    "other positions": (lambda: cs.merge(["law", "mistral"], "out"),
                        r"mistral: config\.json: rope_theta is 1000000\.0, in law 10000\.0; .*\[E-CONFIG\]$"),
    "DoRA": (lambda: cs.merge(["adapter-law", "adapter-dora"], "out"), r"adapter-dora: sets use_dora.*\[E-ADAPTER\]$"),
    "an adapter beside a model": (lambda: cs.merge(["law", "adapter-law"], "out"),
        r"adapter-law: is an adapter, and law is none; .*\[E-ADAPTER\]$"),
    "Fisher merging of adapters": (lambda: cs.merge(["adapter-law", "adapter-medicine"], "out", "fisher"),
        r"looks at more than what adapters change.*\[E-ADAPTER\]$"),
    "chains of draws as they are": (lambda: cs.fuse({"lund": {"mu": rows()}, "oslo": {"mu": rows()}}),
        r"^lund, oslo: each is a mapping of arrays \(mu\).*consilience\.Draws.*\[E-MODEL\]$"),
    "a misspelt dimension": (lambda: cs.Draws({"mu": chains()}, prior=0.5, dims={"mu_": ("site",)}),
        r"^dims: of mu_, did you mean mu\?.*\[E-INPUT\]$"),
    "labels of a misspelt dimension": (
        lambda: cs.Draws({"mu": chains()}, prior=0.5, dims={"mu": ("site",)}, coords={"sites": ["a", "b"]}),
        r"^coords: of sites, which is no dimension, did you mean site\? \[E-INPUT\]$"),
    "a misspelt constraint": (lambda: cs.Draws({"mu": chains()}, prior=0.5, constraints={"mu": "postive"}),
        r"did you mean positive\?.*\[E-VALUE\]$"),
    "a misspelt plot": (lambda: cs.fuse(mixtures()).plot("componets"), r"did you mean components\?.*\[E-VALUE\]$"),
    "a method that has no such requests": (
        lambda: cs.federated.serve_folder("place", "out", sites=["a", "b"], method="kl", then="refine"),
        r"^then: method 'kl' is for posteriors, which have no request 'refine'; refine is for .*\[E-SUPPORT\]$"),
}  # fmt: skip

IN_THE_SHELL = {
    "a misspelt command": ("fues lund.safetensors", 2, r"No such command 'fues', did you mean fuse\?"),
    "a word for a command": ("validate lund.safetensors", 2, r"No such command 'validate', did you mean check\?"),
    "a key of a recipe": ("fuse --recipe recipe.yaml -o out", 1, r"at metod: .*, did you mean method\? \[E-RECIPE\]"),
    "a key of a merge": ("merge --recipe merge.yaml -o out", 1, r"at metod: .*did you mean method\? \[E-RECIPE\]"),
    "a weight that mergekit needs": ("merge della.yaml -o out", 1,
        r"nothing says the weight of .*; give weight \[E-FILE\]"),
    "a table to fuse": ("fuse patients.csv lund.safetensors -o out", 1,
        r"patients\.csv: is a table of data.*\[E-DATA\]"),
    "a file that is not there": ("inspect lund.safetensor", 1,
        r"give lund\.safetensors, if that was meant \[E-MISSING\]"),
    "the seed among options": ("fuse lund.safetensors oslo.safetensors -o out --set seed=3", 2, r"seed: .*give --seed"),
    "a misspelt option": ("fuse lund.safetensors oslo.safetensors -o out --set regularisation=1", 2,
        r"did you mean regularization\?"),
    "the wrong option": ("fuse lund.safetensors oslo.safetensors --outptu out", 2,
        r"No such option '?--outptu.*--output"),
    "the seed of scikit-learn": ("fuse lund.safetensors oslo.safetensors -o out --random-state 3", 2,
        r"No such option --random-state; give --seed, if that was meant \[E-USAGE\]"),
    "no output": ("fuse lund.safetensors oslo.safetensors", 2, r"Missing option.*\[E-USAGE\]"),
    "a misspelt estimator": ("site describe GausianNB --data patients.csv -o out", 2,
        r"did you mean GaussianNB\? \[E-USAGE\]"),
    "a hyper-parameter of another name": ("site describe Ridge --data patients.csv -o out --set lambda=1", 1,
        r"no hyper-parameter lambda, did you mean alpha\?; it has .*\[E-OPTION\]"),
    "a model instead of data": ("site describe GaussianNB --data lund.safetensors -o out", 1,
        r"is the file of a model by its name, expected the rows.*; give them as \.csv.*\[E-FILE\]"),
    "a method to explain": ("methods spham", 2, r"no method spham, did you mean spahm\?"),
}  # fmt: skip


def test_there_are_thirty_and_more():
    assert len(IN_PYTHON) + len(IN_THE_SHELL) >= 30


@pytest.mark.parametrize("mistake", IN_PYTHON)
def test_a_mistake_in_python_is_answered(mistake, place, monkeypatch):
    monkeypatch.chdir(place)
    deed, message = IN_PYTHON[mistake]
    with pytest.raises((cs.ConsilienceError, AttributeError)) as caught:
        deed()
    first = str(caught.value).splitlines()[0]
    assert re.search(message, first), first
    lines = str(caught.value).splitlines()
    assert len(lines) <= 2
    assert all(re.search(r" \[E-[A-Z]+\]$", line) for line in lines)


@pytest.mark.parametrize("mistake", IN_THE_SHELL)
def test_a_mistake_in_the_shell_is_answered(mistake, place, monkeypatch):
    monkeypatch.chdir(place)
    words, code, message = IN_THE_SHELL[mistake]
    done = command(*words.split())
    assert done.code == code, done.err
    assert re.search(message, done.err.replace("\n", " ")), done.err
    assert "Traceback" not in done.err
    assert re.search(r" \[E-[A-Z]+\]$", done.err.rstrip())


def test_what_looks_like_a_mistake_and_works(place, monkeypatch):
    monkeypatch.chdir(place)
    assert cs.rebuild("lund.safetensors").n_components == 2
    assert cs.fuse("*.safetensors").n_components == 2
    assert cs.symmetry(LanguageModel(), {"input_ids": torch.arange(6).reshape(2, 3)}).proved
    assert cs.merge(["adapter-law", "adapter-medicine"], "merged").output.is_dir()
