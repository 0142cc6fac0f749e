"""Ten sites, two of them hostile: what plain and robust fusion make of it. ``nice python benchmarks/hostile_sites.py``.

Three kinds of model: Gaussian mixtures (BayesianGaussianMixture, error: held-out negative log likelihood in nats),
topics (LatentDirichletAllocation on made-up texts, error: held-out perplexity), and an MLP on scikit-learn's digits
(error: share of test digits named wrongly), of one common start and of starts of their own. The clean result is the
plain fusion of the eight honest sites. ``ratio`` is an error over that of the clean result, the median over seeds;
``worst`` the largest. What an attack is made of stands in its function. Nothing was chosen on the held-out data.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.mixture import BayesianGaussianMixture

import consilience as cs
from consilience.core.provenance import library_versions
from consilience.posteriors.describe import describe

RESULT = Path(__file__).with_suffix(".json")
SITES, HOSTILE, SEEDS = 10, 2, range(5)
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "trim": {"robust": "trim"},
    "trim, minority dropped": {"robust": "trim", "minority": "drop"},
    "median": {"robust": "median"},
    "median, minority dropped": {"robust": "median", "minority": "drop"},
}
NETWORK_WAYS = {name: options for name, options in WAYS.items() if "minority" not in options}
TRUE_MEANS = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0], [6.0, 6.0], [3.0, 3.0]])
WORDS, TOPICS = 60, 5


# -- Gaussian mixtures.


def draw(rng: np.random.Generator, count: int, moved: float) -> np.ndarray:
    """Return observations of five components, whose places differ between sites by `moved`."""
    means = TRUE_MEANS + moved * rng.normal(size=TRUE_MEANS.shape)
    return means[rng.integers(len(means), size=count)] + 0.7 * rng.normal(size=(count, 2))


def mixture(rng: np.random.Generator) -> cs.Posterior:
    """Return the posterior of one site's mixture of 500 observations."""
    model = BayesianGaussianMixture(n_components=5, random_state=int(rng.integers(2**31)), max_iter=300, n_init=2)
    return describe(model.fit(draw(rng, 500, 0.15)), min_count=0)


def moved_means(site: cs.Posterior, change: Callable[[np.ndarray], np.ndarray], counts: float = 1.0) -> cs.Posterior:
    """Return a site with other means and `counts` times its counts."""
    told = site.family.from_natural(site.natural)
    told["mean"] = change(np.asarray(told["mean"]))
    return changed(site, site.family.to_natural(**told), counts)


def changed(site: cs.Posterior, natural: np.ndarray, counts: float = 1.0) -> cs.Posterior:
    """Return a site with other components, and mixture weights and counts to match where it adds some."""
    extra = len(natural) - site.n_components
    column = {
        name: None if values is None else np.append(values, np.full(extra, values.max()))
        for name, values in (("counts", site.counts), ("weights", site.weights))
    }
    return cs.Posterior(
        site.family,
        natural,
        prior=site.prior,
        counts=None if column["counts"] is None else counts * column["counts"],
        weights=column["weights"],
        attached=site.attached,
        features=site.features,
        source=site.source,
    )


def with_invented(site: cs.Posterior, rng: np.random.Generator, counts: float = 1.0) -> cs.Posterior:
    """Return a site with two components more, where nobody has any."""
    told = site.family.from_natural(site.natural[:2])
    told["mean"] = np.array([[20.0, -20.0], [-20.0, 20.0]]) + rng.normal(size=(2, 2))
    return changed(site, np.concatenate([site.natural, site.family.to_natural(**told)]), counts)


MIXTURE_ATTACKS: dict[str, Callable[[cs.Posterior, np.random.Generator], cs.Posterior]] = {
    "means times 10": lambda site, rng: moved_means(site, lambda m: 10.0 * m),
    "means times -1": lambda site, rng: moved_means(site, lambda m: -1.0 * m),
    "means shifted by 2": lambda site, rng: moved_means(site, lambda m: m + 2.0),
    "means shifted by 1, colluding": lambda site, rng: moved_means(site, lambda m: m + 1.0),
    "means shifted by 0.4, colluding": lambda site, rng: moved_means(site, lambda m: m + 0.4),
    "counts times 1e9": lambda site, rng: moved_means(site, lambda m: m, 1e9),
    "times 10, counts times 1e9": lambda site, rng: moved_means(site, lambda m: 10.0 * m, 1e9),
    "two invented, counts times 1e9": lambda site, rng: with_invented(site, rng, 1e9),
}


# -- Topics.


def texts(rng: np.random.Generator, topics: np.ndarray, count: int) -> np.ndarray:
    """Return word counts of documents of 80 words."""
    mixes = rng.dirichlet(np.full(len(topics), 0.3), count)
    return np.stack([rng.multinomial(80, mix @ topics) for mix in mixes])


def topic_site(rng: np.random.Generator, topics: np.ndarray) -> cs.Posterior:
    """Return the posterior of one site's topics."""
    model = LatentDirichletAllocation(n_components=TOPICS, random_state=int(rng.integers(2**31)), max_iter=30)
    return describe(model.fit(texts(rng, topics, 250)), min_count=0)


def of_words(site: cs.Posterior, change: Callable[[np.ndarray], np.ndarray], counts: float = 1.0) -> cs.Posterior:
    """Return a site whose topics have other word counts."""
    told = site.family.from_natural(site.natural)
    words = change(np.asarray(told["concentration"]))
    return changed(site, site.family.to_natural(concentration=words), counts)


def turned(words: np.ndarray) -> np.ndarray:
    """Return topics in which rare words are frequent: what -1 is to a mean."""
    return words.max(axis=1, keepdims=True) + words.min(axis=1, keepdims=True) - words


TOPIC_ATTACKS: dict[str, Callable[[cs.Posterior, np.random.Generator], cs.Posterior]] = {
    "words times 1e6": lambda site, rng: of_words(site, lambda w: 1e6 * w, 1e6),
    "words turned round": lambda site, rng: of_words(site, turned),
    "words turned round, times 1e6": lambda site, rng: of_words(site, lambda w: 1e6 * turned(w), 1e6),
    "words shifted by ten": lambda site, rng: of_words(site, lambda w: 50.0 * np.roll(w, 10, axis=1), 50.0),
    "two invented, counts times 1e9": lambda site, rng: of_words(
        site, lambda w: np.concatenate([w, w.sum(axis=1)[:2, None] * rng.dirichlet(np.full(WORDS, 0.05), 2)]), 1e9
    ),
}


# -- Networks.


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return scikit-learn's digits."""
    inputs, labels = load_digits(return_X_y=True)
    return torch.tensor(inputs / 16.0, dtype=torch.float32), torch.tensor(labels)


def network(seed: int) -> torch.nn.Module:
    """Return an MLP of 64, 48 and 10 units."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 10))


def trained(net: torch.nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.nn.Module:
    """Return a network after 80 steps on a site's digits."""
    steps = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(80):
        steps.zero_grad()
        torch.nn.functional.cross_entropy(net(inputs), labels).backward()
        steps.step()
    return net


def with_weights(net: torch.nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.nn.Module:
    """Return a network with every parameter changed."""
    other = network(0)
    other.load_state_dict({name: change(values) for name, values in net.state_dict().items()})
    return other


NETWORK_ATTACKS: dict[str, Callable[[torch.nn.Module, np.random.Generator], torch.nn.Module]] = {
    "times 10": lambda net, rng: with_weights(net, lambda w: 10.0 * w),
    "times -1": lambda net, rng: with_weights(net, lambda w: -w),
    "times -10": lambda net, rng: with_weights(net, lambda w: -10.0 * w),
    "noise of ten times the size": lambda net, rng: with_weights(
        net, lambda w: w + 10.0 * w.std() * torch.tensor(rng.normal(size=w.shape), dtype=w.dtype)
    ),
    "shifted by 3 deviations, colluding": lambda net, rng: with_weights(net, lambda w: w + 3.0 * w.std()),
    "shifted by half a deviation, colluding": lambda net, rng: with_weights(net, lambda w: w + 0.5 * w.std()),
}


def compared(
    honest: list[Any],
    attacks: dict[str, Any],
    ways: dict[str, dict[str, Any]],
    fuse: Callable[..., Any],
    error: Callable[[Any], float],
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Return errors of one seed: of the clean result, of honest sites alone under each way, and under each attack."""
    kept, turncoats = honest[: SITES - HOSTILE], honest[SITES - HOSTILE :]
    found: dict[str, Any] = {"clean": error(fuse(kept))}
    for attack, make in {"none (ten honest sites)": None, **attacks}.items():
        bad = [one if make is None else make(one, rng) for one in turncoats]
        found[attack] = {}
        for way, options in ways.items():
            fusion = fuse([*kept, *bad], **options)
            told = getattr(fusion, "details", {}).get("minority", [])
            found[attack][way] = {"error": error(fusion), "minority": [one["names"] for one in told]}
    return found


def main() -> None:
    """Run all of it and write the results."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cases: dict[str, list[dict[str, Any]]] = {}
    inputs, labels = digits()
    for seed in SEEDS:
        rng = np.random.default_rng([seed, 9])
        test = draw(rng, 4000, 0.0)
        cases.setdefault("Gaussian mixtures", []).append(
            compared(
                [mixture(rng) for _ in range(SITES)],
                MIXTURE_ATTACKS,
                WAYS,
                lambda sites, **options: cs.fuse(
                    sites, method="kl", rng=0, min_count=0, combine="barycenter", **options
                ),
                lambda fusion, test=test: -float(fusion.model.score(test)),
                rng,
            )
        )
        topics = rng.dirichlet(np.full(WORDS, 0.1), TOPICS)
        held = texts(rng, topics, 300)
        cases.setdefault("topics", []).append(
            compared(
                [topic_site(rng, topics) for _ in range(SITES)],
                TOPIC_ATTACKS,
                WAYS,
                lambda sites, **options: cs.fuse(
                    sites, method="kl", rng=0, min_count=0, combine="barycenter", **options
                ),
                lambda fusion, held=held: float(fusion.model.perplexity(held)),
                rng,
            )
        )
        order = torch.tensor(rng.permutation(len(inputs)))
        parts, tests = order[:1300].chunk(SITES), order[1300:]
        for case, method, common in (("MLP, one start", "average", True), ("MLP, own starts", "consensus", False)):
            nets = [
                trained(network(seed if common else 100 * seed + number), inputs[part], labels[part])
                for number, part in enumerate(parts)
            ]
            more = {} if common else {"refit": False}
            cases.setdefault(case, []).append(
                compared(
                    nets,
                    NETWORK_ATTACKS,
                    NETWORK_WAYS,
                    lambda models, method=method, more=more, **options: cs.fuse(
                        models, method=method, example=inputs[:4], rng=0, **more, **options
                    ),
                    lambda fusion, tests=tests: float(
                        (fusion.model(inputs[tests]).argmax(1) != labels[tests]).float().mean()
                    ),
                    rng,
                )
            )
    found = {"summary": summed(cases), "seeds": cases, "versions": library_versions()}
    RESULT.write_text(json.dumps(_written(found), indent=1, allow_nan=False) + "\n")


def _written(value: Any) -> Any:
    """Return JSON values in which a perplexity without end is a word."""
    if isinstance(value, dict):
        return {name: _written(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_written(one) for one in value]
    return "infinite" if isinstance(value, float) and not math.isfinite(value) else value


def summed(cases: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return for every case, attack and way the ratio to the clean error: median and worst over seeds."""
    told: dict[str, Any] = {}
    for case, seeds in cases.items():
        told[case] = {"clean error": median(one["clean"] for one in seeds)}
        for attack in (name for name in seeds[0] if name != "clean"):
            told[case][attack] = {}
            for way in seeds[0][attack]:
                ratios = [one[attack][way]["error"] / one["clean"] for one in seeds]
                listed = [len(one[attack][way]["minority"]) for one in seeds]
                told[case][attack][way] = {
                    "ratio": round(median(ratios), 3),
                    "worst": round(max(ratios), 3),
                    "minority components": median(listed),
                }
    return told


if __name__ == "__main__":
    main()
