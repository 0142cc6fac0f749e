"""Topics of four collections of texts that no rule was tuned on: ``python experiments/kl_fusion/topic_sets.py``.

Five sites hold the texts of some themes each and fit a topic model of ten topics, under scikit-learn's default priors;
what was fused predicts a tenth of the tokens of held-out texts (``document_completion``). Needs ``newsgroups20_text``,
``newsgroups20_bow``, ``ag_news``, ``dbpedia14`` and ``glove50_vocab`` in the folder ``CONSILIENCE_DATA`` (default
``../shared/data`` beside the repository). ``--write`` writes ``topic_sets.json`` beside this file. Fits and scores are
kept in the cache folder, so that the run may be stopped and started again; ``--again METHOD ...`` scores these anew,
``--seeds N`` takes the first N seeds only.
"""

from __future__ import annotations

import argparse
import lzma
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
from record import as_text, remembered, versions
from scipy.sparse import csr_array, vstack
from scipy.special import xlogy
from simulate import CACHE
from sklearn.feature_extraction.text import CountVectorizer
from threadpoolctl import threadpool_limits

import consilience as cs
from consilience.posteriors.topics.document_completion import HELD_OUT_SHARE, complete_documents, split_tokens

sys.path.append(str(Path(__file__).resolve().parents[1]))
from baselines import kmeans, topic_model

HERE = Path(__file__).parent
DATA = Path(os.environ.get("CONSILIENCE_DATA", HERE.parents[2] / "shared/data"))
FITS = CACHE / "topic-sets"
SEEDS = range(5)
TOPICS, GIVEN, POOLED = 10, (10, 20, 30, 40), (10, 30)
LDA = {"learning_method": "batch", "max_iter": 20}
N_SITES, N_DOCUMENTS, N_HELD_OUT, N_WORDS = 5, 2000, 600, 4000
MIN_DOCUMENTS, MAX_SHARE = 5, 0.2
"""A word is in the vocabulary if so many texts have it and no greater share of them: stop words go by the latter."""
WORD = r"[a-z]{3,20}"
THEMES = (("comp",), ("rec",), ("sci",), ("talk",), ("misc", "alt", "soc"))
CHOSEN = {
    "sites": "newsgroups by branch; of AG News and DBpedia every class is at one site or two, drawn by seed",
    "topics of a site": "10 at every site, and scikit-learn's default priors, 1 / 10 of topics and of words",
    "texts": "2,000 in training and 600 held out, drawn by seed; the 4,000 commonest words that few enough texts have",
    "k-means, Runnalls": "of mean probabilities: k-means of their square roots; the pair of least weighted "
    "Jensen-Shannon divergence merged until so many are left, which is what Runnalls' reduction is for counts",
}


@cache
def texts(name: str) -> tuple[csr_array, np.ndarray, np.ndarray]:
    """Return all texts of a collection as counts (n, V), their classes (n,), and the sites' theme of each class."""
    if name == "newsgroups, stems":
        with np.load(DATA / "newsgroups20_bow.npz") as stored:
            data = dict(stored)
        triple = (data["data"].astype(float), data["indices"].astype(np.int64), data["indptr"].astype(np.int64))
        counts = csr_array(triple, shape=(len(data["label"]), len(data["vocab"])))
        return counts, data["label"], _themes(data["label_names"])
    if name == "newsgroups, words":
        with np.load(DATA / "newsgroups20_text.npz") as stored:
            raw, ends, label = lzma.decompress(stored["text_xz"].tobytes()), stored["offsets"], stored["label"]
            themes = _themes(stored["label_names"])
        bodies = [raw[a:b].decode().partition("\n\n")[2] for a, b in pairwise(ends.tolist())]
        counts = CountVectorizer(token_pattern=WORD, min_df=MIN_DOCUMENTS).fit_transform(bodies)
        return csr_array(counts, dtype=float), label, themes
    with np.load(DATA / f"{name}.npz") as stored:
        tokens, ends, label = stored["tokens_train"], stored["offsets_train"].astype(np.int64), stored["y_train"]
    counts = csr_array((np.ones(len(tokens)), tokens.astype(np.int64), ends), shape=(len(label), int(tokens.max()) + 1))
    counts.sum_duplicates()
    return counts, label, np.arange(0)


def _themes(names: np.ndarray) -> np.ndarray:
    """Return the site of each newsgroup."""
    return np.array([next(i for i, own in enumerate(THEMES) if str(name).split(".")[0] in own) for name in names])


def split(name: str, seed: int) -> tuple[list[csr_array], csr_array]:
    """Return the texts of every site and the held-out ones (n, V), over the vocabulary of the training texts."""
    counts, label, themes = texts(name)
    rng = np.random.default_rng([seed, sum(map(ord, name))])
    chosen = rng.permutation(len(label))[: N_DOCUMENTS + N_HELD_OUT]
    training, held_out = chosen[:N_DOCUMENTS], chosen[N_DOCUMENTS:]
    n_documents = (counts[training] > 0).sum(axis=0)
    is_known = (n_documents >= MIN_DOCUMENTS) & (n_documents <= MAX_SHARE * N_DOCUMENTS)
    words = np.sort(np.argsort(-np.where(is_known, n_documents, 0), kind="stable")[: min(N_WORDS, is_known.sum())])
    if themes.size:
        site = themes[label[training]]
    else:  # as many classes at every site as there are, over the sites, and some at two
        classes = np.unique(label)
        holders = np.stack([rng.permutation(N_SITES)[:2] for _ in classes])
        holders[: len(classes)] = (holders + np.arange(len(classes))[:, None]) % N_SITES
        missing = np.setdiff1d(np.arange(N_SITES), holders)
        holders.ravel()[: len(missing)] = missing
        site = holders[np.searchsorted(classes, label[training]), rng.integers(2, size=N_DOCUMENTS)]
    return [counts[training[site == one]][:, words] for one in range(N_SITES)], counts[held_out][:, words]


def fitted(name: str, documents: Callable[[], csr_array], topics: int, seed: int) -> cs.Posterior:
    """Return the posterior of a topic model, from the cache where it is there."""
    path = FITS / f"{name.replace(', ', '-')}-K{topics}-passes{LDA['max_iter']}-seed{seed}.safetensors"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        counts = documents()
        names = [f"word {column}" for column in range(counts.shape[1])]
        cs.save(cs.describe(topic_model(counts, topics, seed, **LDA), features=names), path, min_count=0)
    return cs.load(path)


def local_fits(name: str, seed: int) -> list[cs.Posterior]:
    """Return the topic models of all sites."""
    sites: list[csr_array] = []

    def documents(site: int) -> csr_array:
        if not sites:
            sites.extend(split(name, seed)[0])
        return sites[site]

    return [
        fitted(f"{name}-{site}", lambda site=site: documents(site), TOPICS, N_SITES * seed + site)
        for site in range(N_SITES)
    ]


def probabilities(sites: list[cs.Posterior]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean probabilities (L, V) and tokens (L,) of all topics."""
    alpha = np.concatenate([site.parameters()["concentration"] for site in sites])
    return alpha / alpha.sum(axis=1, keepdims=True), np.concatenate([site.counts for site in sites])


def grouped(sites: list[cs.Posterior], labels: np.ndarray) -> np.ndarray:
    """Return the pooled concentrations (G, V) of groups of topics."""
    alpha = np.concatenate([site.parameters()["concentration"] for site in sites])
    return np.stack([alpha[labels == group].sum(axis=0) for group in np.unique(labels)])


def reduced(sites: list[cs.Posterior], count: int) -> np.ndarray:
    """Return the groups (L,) that greedy merging by Jensen-Shannon divergence leaves, `count` of them."""
    means, mass = probabilities(sites)
    sums, mass, labels = means * mass[:, None], mass.copy(), np.arange(len(mass))

    def informations(rows: np.ndarray) -> np.ndarray:
        totals = rows.sum(axis=1)
        return xlogy(rows, rows).sum(axis=1) - xlogy(totals, totals)

    alone = informations(sums)
    costs = np.stack([alone + alone[row] - informations(sums + sums[row]) for row in range(len(mass))])
    np.fill_diagonal(costs, np.inf)
    for _ in range(len(mass) - count):
        a, b = sorted(divmod(int(costs.argmin()), len(mass)))
        sums[a] += sums[b]
        labels[labels == b] = a
        alone[a] = informations(sums[a][None])[0]
        left = np.isfinite(costs[a])
        left[[a, b]] = False
        costs[b], costs[:, b] = np.inf, np.inf
        row = alone + alone[a] - informations(sums + sums[a])
        costs[a, left] = costs[left, a] = row[left]
    return np.unique(labels, return_inverse=True)[1]


def topics_of(method: str, name: str, seed: int) -> np.ndarray:
    """Return the concentrations (G, V) of the topics that a method gives."""
    sites = local_fits(name, seed)
    kind, _, count = method.partition(", ")
    if kind == "pooled":
        return fitted(
            f"{name}-pooled", lambda: vstack(split(name, seed)[0], format="csr"), int(count), seed
        ).parameters()["concentration"]
    if kind == "k-means":
        return grouped(sites, kmeans(np.sqrt(probabilities(sites)[0]), int(count), 0).labels_)
    if kind == "Runnalls":
        return grouped(sites, reduced(sites, int(count)))
    options: dict[str, Any] = {
        "default": {},
        "given": {"n_components": int(count or 0)},
        "naive average": {"method": "average"},
        "concatenation": {"method": "concatenate"},
    }[kind]
    return cs.fuse(sites, min_count=0, **options).posterior.parameters()["concentration"]


METHODS = [
    "default",
    *(f"{kind}, {count}" for kind in ("given", "k-means", "Runnalls") for count in GIVEN),
    "naive average",
    "concatenation",
    "best site",
    *(f"pooled, {count}" for count in POOLED),
]
SETS = ("newsgroups, words", "newsgroups, stems", "ag_news", "dbpedia14")


def score(method: str, name: str, seed: int) -> dict[str, Any]:
    """Return the log likelihood of held-out tokens under a method's topics, their number and the time it took."""
    observed, held_out = split_tokens(split(name, seed)[1], share=HELD_OUT_SHARE, rng=seed)

    def per_token(topics: np.ndarray) -> float:
        return complete_documents(observed, held_out, topics, 1.0 / len(topics)).per_token

    if method == "best site":
        sites = local_fits(name, seed)
        return {"log_likelihood": max(per_token(one.parameters()["concentration"]) for one in sites), "topics": TOPICS}
    local_fits(name, seed)
    start = time.process_time()
    topics = topics_of(method, name, seed)
    seconds = time.process_time() - start
    found = {"log_likelihood": per_token(topics), "topics": len(topics)}
    sys.stdout.write(f"{name}, seed {seed}, {method}: {found['log_likelihood']:.4f}, {len(topics)} topics\n")
    sys.stdout.flush()
    return found if method.startswith("pooled") else found | {"seconds": seconds}


def main() -> None:
    """Fit, fuse, score and write down."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--again", nargs="+", choices=METHODS, default=[])
    parser.add_argument("--results", type=Path, default=FITS / "results")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    ran, rows = versions(), []
    with threadpool_limits(1):
        for seed in range(options.seeds):
            for name in options.sets:
                path = options.results / f"{name.replace(', ', '-')}-seed{seed}.json"
                found = remembered(
                    path,
                    options.methods,
                    set(options.again),
                    ran["library_source"],
                    lambda method: score(method, name, seed),  # noqa: B023
                )
                rows.append({"set": name, "seed": seed, "methods": {one: found[one] for one in options.methods}})
    if options.write:
        settings = {"seeds": options.seeds, "lda": LDA, "words": N_WORDS, "texts": N_DOCUMENTS, "held_out": N_HELD_OUT}
        record = {"settings": settings, "chosen": CHOSEN, "versions": ran, "rows": rows}
        (HERE / "topic_sets.json").write_text(as_text(record))


if __name__ == "__main__":
    main()
