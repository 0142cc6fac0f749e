"""Gaussian topics, section 5 of Yurochkin et al. 2019: ``python experiments/spahm/gaussian_topics.py``.

Every site clusters the tokens of its articles in a space of word embeddings, 25 centres each, and the centres of all
sites are matched. The paper has 40 books of Project Gutenberg, which are not to be had here; the sites are parts of 20
Newsgroups instead: its 20 groups, or their five branches. A topic's words are those nearest to its centre, and their
coherence is counted in the half of the articles that no site has. Needs ``newsgroups20_text.npz`` and
``glove50_vocab.npz`` in the folder ``CONSILIENCE_DATA`` (default ``../shared/data`` beside the repository), and gensim.
Writes ``gaussian_topics.json`` beside this file. What was found is kept in the cache folder, so that the run may be
stopped and started again (half an hour in all); ``--again METHOD ...`` runs these methods anew.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import lzma
import os
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np
from gensim.corpora import Dictionary
from gensim.topic_coherence.direct_confirmation_measure import log_ratio_measure
from gensim.topic_coherence.probability_estimation import p_boolean_sliding_window
from gensim.topic_coherence.segmentation import s_one_one
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from threadpoolctl import threadpool_limits

import consilience as cs
from consilience.core.scores import paired_difference
from consilience.posteriors.topics.gaussian_topics import GaussianTopics

sys.path.append(str(Path(__file__).resolve().parents[1]))
from record import as_text, remembered, versions

HERE = Path(__file__).parent
DATA = Path(os.environ.get("CONSILIENCE_DATA", HERE.parents[2] / "shared/data"))
CACHE = Path(os.environ.get("CONSILIENCE_CACHE", HERE.parent / ".cache")) / "spahm/gaussian_topics"
SEEDS = range(10)
TOPICS, WORDS, WINDOW = 25, 10, 10
RARE, RARE_AMONG_WORDS = 5, 20
BRANCHES = {"misc": "other", "alt": "other", "soc": "other"}
ARRANGEMENTS = ("20 groups", "5 branches")
METHODS = ("SPAHM", "KL-fusion", "KL-fusion, as many", "k-means of centres", "pooled k-means", "sites alone")
REFERENCE = "SPAHM"
CHOSEN = {
    "data": "20 Newsgroups for the paper's 40 books, which were not at hand; so no number is the paper's",
    "embeddings": "GloVe, 50 dimensions, of Wikipedia and Gigaword: we chose",
    "sites": "the 20 groups, and the five branches of the topic experiment of KL-fusion: we chose",
    "centres of a site": "25, as in the paper",
    "words": "runs of 3 to 20 letters with an embedding, no stop words, in 5 articles or more of the sites: we chose",
    "words of a topic": "the 10 nearest to its centre, of those in 20 articles or more of the sites: we chose",
    "reference": "half of the articles, drawn by seed, that no site has; the paper has 3,000 other books",
    "coherence": "gensim, windows of 10 words: pointwise mutual information (UCI, as the paper) and normalised (NPMI)",
    "SPAHM": "the library's default; no setting was chosen on these data",
    "KL-fusion": "the library's default, which finds the number; as many: told the number that SPAHM finds",
    "k-means of centres, pooled k-means": "told the number that SPAHM finds; 8 starts",
    "seconds": "processor time of one thread, without fitting at the sites; of the pooled fit, and of all sites' fits",
}
PUBLISHED = {
    "topics": {"SPAHM": 155, "Gaussian LDA": 150},
    "UCI": {"SPAHM": -2.0967, "Gaussian LDA": -4.5956},
    "seconds": {"SPAHM": 42, "Gaussian LDA": "about 600 an iteration, 100 iterations"},
}
LETTERS, ADDRESS = re.compile(r"\b[a-z]{3,20}\b"), re.compile(r"\S+@\S+")


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Words and their vectors (V, e)."""

    words: tuple[str, ...]
    vectors: np.ndarray

    def of(self, words: list[str]) -> np.ndarray:
        """Return the vectors of some words."""
        place = {word: number for number, word in enumerate(self.words)}
        return self.vectors[[place[word] for word in words]]


@cache
def load_embeddings() -> Embeddings:
    """Read the words that have a vector."""
    with np.load(DATA / "glove50_vocab.npz") as stored:
        has = stored["has_vector"]
        return Embeddings(tuple(stored["vocab"][has].tolist()), stored["vectors"][has].astype(np.float64))


def words_of(text: str, known: frozenset[str]) -> list[str]:
    """Return the words of an article: of its subject and its body."""
    header, _, body = text.partition("\n\n")
    subject = " ".join(line[8:] for line in header.split("\n") if line.startswith("Subject:"))
    found = LETTERS.findall(ADDRESS.sub(" ", f"{subject}\n{body}".lower()))
    return [word for word in found if word in known]


@cache
def load_articles() -> tuple[list[list[str]], list[str]]:
    """Return the words of every article, and its newsgroup."""
    known = frozenset(load_embeddings().words) - ENGLISH_STOP_WORDS
    with np.load(DATA / "newsgroups20_text.npz") as stored:
        raw, places = lzma.decompress(stored["text_xz"].tobytes()), stored["offsets"]
        groups = stored["label_names"][stored["label"]].tolist()
    texts = (raw[start:end].decode() for start, end in itertools.pairwise(places))
    return [words_of(text, known) for text in texts], groups


@dataclass(frozen=True, eq=False)
class Split:
    """Articles of the sites and of nobody: `sites` by name, `words` that are clustered, `shown` as words of topics."""

    sites: dict[str, list[list[str]]]
    reference: list[list[str]]
    words: list[str]
    shown: list[str]


@cache
def split(arrangement: str, seed: int) -> Split:
    """Return half of the articles by site, and the other half."""
    articles, groups = load_articles()
    order = np.random.default_rng(seed).permutation(len(articles))
    own, rest = order[: len(order) // 2], order[len(order) // 2 :]
    sites: dict[str, list[list[str]]] = {}
    for number in own:
        branch = groups[number].split(".")[0]
        name = groups[number] if arrangement == "20 groups" else BRANCHES.get(branch, branch)
        sites.setdefault(name, []).append(articles[number])
    reference = [articles[number] for number in rest]
    spread = Counter(word for number in own for word in set(articles[number]))
    there = set().union(*map(set, reference))
    return Split(
        dict(sorted(sites.items())),
        reference,
        sorted(word for word, count in spread.items() if count >= RARE),
        sorted(word for word, count in spread.items() if count >= RARE_AMONG_WORDS and word in there),
    )


@cache
def local_fits(arrangement: str, seed: int) -> tuple[list[Any], float]:
    """Return the topics of every site, and the seconds that all of them took."""
    data = split(arrangement, seed)
    vectors, start = load_embeddings().of(data.words), time.process_time()
    learners = (GaussianTopics(TOPICS, seed=100 * seed + number, space="glove.6B.50d") for number in range(99))
    models = [
        learner.fit(own, vectors, data.words) for learner, own in zip(learners, data.sites.values(), strict=False)
    ]
    return models, time.process_time() - start


@cache
def number_found(arrangement: str, seed: int) -> int:
    """Return the number of topics that SPAHM finds, which others are told."""
    return cs.fuse(local_fits(arrangement, seed)[0], "spahm", rng=seed, min_count=0).n_components


def topics_of(name: str, arrangement: str, seed: int) -> tuple[list[Any], float]:
    """Return the models that a method gives (one, but for the sites alone), and the seconds that it took."""
    models, fitting = local_fits(arrangement, seed)
    if name == "sites alone":
        return models, fitting
    told = {} if name in ("SPAHM", "KL-fusion") else {"n_components": number_found(arrangement, seed)}
    start = time.process_time()
    if name == "pooled k-means":
        data = split(arrangement, seed)
        pooled, vectors = [words for own in data.sites.values() for words in own], load_embeddings().of(data.words)
        model = GaussianTopics(told["n_components"], seed=seed).fit(pooled, vectors, data.words)
        return [model], time.process_time() - start
    method = {"SPAHM": "spahm", "k-means of centres": "kmeans"}.get(name, "kl")
    model = cs.fuse(models, method, rng=seed, min_count=0, combine="barycenter", **told).model  # as the papers average
    return [model], time.process_time() - start


def score(name: str, arrangement: str, seed: int) -> dict[str, Any]:
    """Return a method's topics as words, how far reference tokens are from them, and how long they took."""
    data, embeddings = split(arrangement, seed), load_embeddings()
    models, seconds = topics_of(name, arrangement, seed)
    shown = embeddings.of(data.shown)
    tokens = Counter(word for words in data.reference for word in words)
    vectors, counts = embeddings.of(data.words), np.array([tokens[word] for word in data.words], dtype=np.float64)
    apart = [np.square(vectors - model.centers[model.assign(vectors)]).sum(axis=1) @ counts for model in models]
    say(f"{arrangement}, seed {seed}, {name}: {sum(model.n_topics for model in models)} topics in {seconds:.1f} s")
    return {
        "topics": sum(model.n_topics for model in models),
        "seconds": seconds,
        "distance": float(np.mean(apart) / counts.sum()),
        "words": [words for model in models for words in model.top_words(WORDS, shown, data.shown)],
    }


def coherences(topics: list[list[str]], reference: list[list[str]]) -> dict[str, list[float]]:
    """Return UCI and NPMI coherence of every topic, given as words, in the reference articles."""
    dictionary = Dictionary(reference)
    segments = s_one_one([np.array([dictionary.token2id[word] for word in words]) for words in topics])
    counted = p_boolean_sliding_window(reference, segments, dictionary, WINDOW, processes=1)
    return {
        measure: [float(value) for value in log_ratio_measure(segments, counted, normalize=normalize)]
        for measure, normalize in (("uci", False), ("npmi", True))
    }


def scored(arrangement: str, seed: int, again: set[str], source: str) -> dict[str, dict[str, Any]]:
    """Return the scores of every method, coherence included, from the cache where they are there."""
    path = CACHE / f"{arrangement.replace(' ', '-')}-seed{seed}.json"
    found = remembered(path, METHODS, again, source, lambda name: score(name, arrangement, seed))
    topics = [words for name in METHODS for words in found[name]["scores"]["words"]]
    digest = hashlib.sha256(json.dumps(topics).encode()).hexdigest()[:16]
    kept = path.with_name(f"{path.stem}-coherence-{digest}.json")
    if not kept.exists():
        kept.write_text(json.dumps(coherences(topics, split(arrangement, seed).reference)))
    values, start = json.loads(kept.read_text()), 0
    rows = {}
    for name in METHODS:
        own = dict(found[name]["scores"])
        end = start + len(own.pop("words"))
        rows[name] = {**own, **{key: mean(value[start:end]) for key, value in values.items()}}
        start = end
    return rows


def summary(rows: list[dict[str, dict[str, Any]]], name: str) -> dict[str, Any]:
    """Return mean and standard deviation over seeds of a method, and paired differences to another."""
    found: dict[str, Any] = {"seconds": median(row[name]["seconds"] for row in rows)}
    for key in ("topics", "uci", "npmi", "distance"):
        own, other = (np.array([row[one][key] for row in rows], dtype=np.float64) for one in (name, REFERENCE))
        found[key] = {"mean": float(own.mean()), "sd": stdev(own.tolist())}
        if name != REFERENCE and key != "topics":
            difference = paired_difference(own, other, np.ones(len(own)))
            found[key] |= {"difference": difference.mean, "interval": list(difference.interval)}
    return found


def say(text: str) -> None:
    """Tell how far the run is."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Fit, fuse, score and write down."""
    again = set(sys.argv[2:]) if sys.argv[1:2] == ["--again"] else set()
    if len(sys.argv) > 1 and (not again or not again <= set(METHODS)):
        sys.exit(f"usage: gaussian_topics.py [--again METHOD ...]; the methods are {', '.join(map(repr, METHODS))}")
    ran, rows = versions(), {}
    with threadpool_limits(1):
        for arrangement in ARRANGEMENTS:
            rows[arrangement] = [scored(arrangement, seed, again, ran["library_source"]) for seed in SEEDS]
            local_fits.cache_clear()
            split.cache_clear()
    result = {
        "settings": {
            "seeds": list(SEEDS),
            "topics": TOPICS,
            "words": WORDS,
            "window": WINDOW,
            "articles": len(load_articles()[0]),
            "sites": {one: {k: len(v) for k, v in split(one, 0).sites.items()} for one in ARRANGEMENTS},
            "vocabulary": len(split(ARRANGEMENTS[0], 0).words),
        },
        "chosen": CHOSEN,
        "published": PUBLISHED,
        "versions": ran,
        "summary": {one: {name: summary(found, name) for name in METHODS} for one, found in rows.items()},
        "scores": {
            one: {name: {key: [row[name][key] for row in found] for key in found[0][name]} for name in METHODS}
            for one, found in rows.items()
        },
    }
    (HERE / "gaussian_topics.json").write_text(as_text(result))


if __name__ == "__main__":
    main()
