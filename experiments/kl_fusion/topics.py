"""Topics of 20 Newsgroups, section 5.3 of Claici et al. 2020: ``python experiments/kl_fusion/topics.py``.

Five sites hold the articles of one branch of the newsgroups each and fit a topic model; what was fused predicts a tenth
of the tokens of 1,000 held-out articles, equation (10). Needs ``newsgroups20_bow.npz`` in the folder
``CONSILIENCE_DATA`` (default ``../shared/data`` beside the repository). Writes ``topics.json``, ``topics.svg`` and
``topics_time.svg`` (likelihood against time, as the paper's figure 4) beside this file. Local fits and scores are kept
in the cache folder, so that the run may be stopped and started again; ``--again METHOD ...`` scores these methods anew.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
from baselines import topic_model
from figure import draw_topics, draw_topics_time
from record import as_text, remembered, versions
from scipy.sparse import csr_array
from simulate import CACHE
from threadpoolctl import threadpool_limits

import consilience as cs
from consilience.core.scores import paired_difference
from consilience.posteriors.topics.document_completion import HELD_OUT_SHARE, complete_documents, split_tokens

HERE = Path(__file__).parent
DATA = Path(os.environ.get("CONSILIENCE_DATA", HERE.parents[2] / "shared/data")) / "newsgroups20_bow.npz"
FITS = CACHE / "topics"
SEEDS = range(10)
TOPICS, POOLED = 10, (10, 50)  # of a site, and of the models of all data
LDA = {"learning_method": "batch", "doc_topic_prior": 0.1, "topic_word_prior": 0.01, "max_iter": 25}
SITES = {"comp": ("comp",), "rec": ("rec",), "sci": ("sci",), "talk": ("talk",), "other": ("misc", "alt", "soc")}
REFERENCE = "parametric"
CHOSEN = {
    "data": "18,689 articles, 12,497 words and 1,000 articles held out as in the paper; which words and which articles "
    "was not published, so they are not the same",
    "sites": "by topic of the articles as in the paper, which does not say how; we chose branches of the newsgroups",
    "topics of a site": "10, as in the paper",
    "priors": "0.1 of topics in documents, 0.01 of words in topics: we chose, beforehand",
    "max_iter": "we chose by time, beforehand: all fits in about an hour on one core",
    "split": "a tenth of every held-out article's tokens as in the paper; drawn by seed, the same for all methods",
    "parametric": "10 topics, as in the paper",
    "non-parametric": "lambda = 0.1 standard deviations as in the paper; up to 50 topics, which is all of them",
    "auto": "the library's default, which tries up to 30 topics here; its two constants were not chosen on topics, but "
    "how it estimates heterogeneity was reworked after a first run of this experiment",
    "AMPS": "as the paper: 10 topics, and a Bayes product",
    "SPAHM": "of square roots of mean probabilities, which the paper has not; two variances in all, since two for each "
    "of 12,497 words are more than 50 topics can tell",
    "seconds": "processor time of one thread, of fusing alone",
    "pooled": "10 topics as a site, 50 as all sites together; fitted once each, for time, and scored on every split",
}


@dataclass(frozen=True, eq=False)
class Corpus:
    """Articles as word counts.

    Parameters
    ----------
    sites
        Training articles of every site (n, V).
    held_out
        Articles that no site has (n, V).
    """

    sites: dict[str, csr_array]
    held_out: csr_array

    @property
    def pooled(self) -> csr_array:
        """All training articles."""
        from scipy.sparse import vstack

        return vstack(list(self.sites.values()), format="csr")


def site_of(newsgroup: str) -> str:
    """Return the site that holds the articles of a newsgroup."""
    return next(site for site, branches in SITES.items() if newsgroup.split(".")[0] in branches)


def load_corpus(path: Path = DATA) -> Corpus:
    """Read the articles and divide them among sites."""
    with np.load(path) as stored:
        data = dict(stored)
    counts = csr_array(
        (data["data"].astype(np.float64), data["indices"].astype(np.int64), data["indptr"].astype(np.int64)),
        shape=(len(data["label"]), len(data["vocab"])),
    )
    owner = np.array([site_of(str(name)) for name in data["label_names"]])[data["label"]]
    training = data["used"] & ~data["heldout"]
    sites = {site: counts[np.flatnonzero(training & (owner == site))] for site in SITES}
    return Corpus(sites, counts[np.flatnonzero(data["heldout"])])


def fitted(name: str, documents: Callable[[], csr_array], topics: int, seed: int) -> cs.Posterior:
    """Return the posterior of a topic model, from the cache where it is there."""
    path = FITS / f"{name}-K{topics}-passes{LDA['max_iter']}-seed{seed}.safetensors"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        model = topic_model(documents(), topics, seed, **LDA)
        cs.save(model, path, min_count=0)
        say(f"fitted {path.stem} in {time.perf_counter() - start:.0f} s")
    return cs.load(path)


def say(text: str) -> None:
    """Tell how far the run is."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


FUSED: dict[str, dict[str, Any]] = {
    "parametric": {"n_components": TOPICS},
    "non-parametric": {"regularization": 0.1, "max_components": TOPICS * len(SITES)},
    "auto": {},
    "AMPS": {"method": "amps", "combine": "product"},
    "SPAHM": {"method": "spahm", "variances": "scalar"},
    "naive average": {"method": "average"},
    "concatenation": {"method": "concatenate"},
}
METHODS = [*FUSED, *(f"pooled, {topics}" for topics in POOLED)]


def local_fits(corpus: Corpus, seed: int) -> list[cs.Posterior]:
    """Return the topic models of all sites."""
    sites = enumerate(corpus.sites.items())
    return [fitted(site, lambda own=own: own, TOPICS, 10 * seed + number) for number, (site, own) in sites]


def topics_of(name: str, corpus: Corpus, seed: int) -> tuple[cs.Posterior, float | None]:
    """Return the topics that a method gives, and the seconds that fusing took; None for a fit to all data."""
    if name.startswith("pooled"):
        return fitted("pooled", lambda: corpus.pooled, int(name.split()[-1]), SEEDS[0]), None
    local = local_fits(corpus, seed)
    start = time.process_time()
    fusion = cs.fuse(local, min_count=0, **{"combine": "barycenter", **FUSED[name]})  # as the paper averages
    return fusion.posterior, time.process_time() - start


def score(name: str, corpus: Corpus, seed: int) -> dict[str, Any]:
    """Return how well a method's topics predict held-out tokens, how many there are, and how long fusing took."""
    posterior, seconds = topics_of(name, corpus, seed)
    observed, held_out = split_tokens(corpus.held_out, share=HELD_OUT_SHARE, rng=seed)
    topics = posterior.parameters()["concentration"]
    found = complete_documents(observed, held_out, topics, LDA["doc_topic_prior"])
    say(f"seed {seed}, {name}: {found.per_token:.4f} a token, {len(topics)} topics")
    return {
        "log_likelihood": found.per_token,
        "tokens": int(found.tokens.sum()),
        "skipped": found.skipped,
        "topics": len(topics),
        "seconds": seconds,
    }


def summary(columns: dict[str, list[Any]], reference: list[float]) -> dict[str, Any]:
    """Return mean and standard deviation over seeds of a method, and its paired difference to another.

    Parameters
    ----------
    columns
        Scores of the method, a list over seeds each.
    reference
        Log likelihoods of the other method, by seed.
    """
    own = np.array(columns["log_likelihood"])
    difference = paired_difference(own, np.array(reference), np.ones(len(own)))
    several = len(own) > 1
    return {
        "log_likelihood": {"mean": float(own.mean()), "sd": float(stdev(own.tolist())) if several else 0.0},
        "difference": difference.mean,
        "interval": list(difference.interval) if several else None,
        "topics": mean(columns["topics"]),
        "seconds": None if columns["seconds"][0] is None else median(columns["seconds"]),
    }


def main() -> None:
    """Fit, fuse, score and write down."""
    again = set(sys.argv[2:]) if sys.argv[1:2] == ["--again"] else set()
    if len(sys.argv) > 1 and (not again or not again <= set(METHODS)):
        sys.exit(f"usage: topics.py [--again METHOD ...]; the methods are {', '.join(map(repr, METHODS))}")
    ran, corpus = versions(), load_corpus()
    rows = []
    with threadpool_limits(1):
        cs.fuse(
            local_fits(corpus, SEEDS[0]), min_count=0, **FUSED[REFERENCE]
        )  # so that no time is that of loading libraries
        for seed in SEEDS:
            path = FITS / "results" / f"passes{LDA['max_iter']}-seed{seed}.json"
            rows.append(
                remembered(path, METHODS, again, ran["library_source"], lambda name: score(name, corpus, seed))  # noqa: B023
            )
    columns = {
        name: {key: [row[name]["scores"][key] for row in rows] for key in rows[0][name]["scores"]} for name in METHODS
    }
    result = {
        "settings": {
            "seeds": list(SEEDS),
            "sites": SITES,
            "articles": {site: documents.shape[0] for site, documents in corpus.sites.items()},
            "held_out": corpus.held_out.shape[0],
            "words": corpus.held_out.shape[1],
            "share": HELD_OUT_SHARE,
            "topics": TOPICS,
            "lda": LDA,
            "fused": FUSED,
        },
        "chosen": CHOSEN,
        "versions": ran,
        "library_sources": {name: sorted({row[name]["library_source"] for row in rows}) for name in METHODS},
        "summary": {name: summary(found, columns[REFERENCE]["log_likelihood"]) for name, found in columns.items()},
        "scores": columns,
    }
    (HERE / "topics.json").write_text(as_text(result))
    draw_topics(columns, HERE / "topics.svg")
    draw_topics_time(columns, HERE / "topics_time.svg")


if __name__ == "__main__":
    main()
