"""The founding papers' settings as calls, and their numbers and ours: ``docs/coming_from/published_code.md``.

Our numbers, and the published ones where a table of an evidence page has them, are cells of those tables.
"""

from __future__ import annotations

from dataclasses import dataclass

from table_cells import Cell, Tables, text_of

PUBLISHED_TEMPERATURES = "5.860 / 8.917"
"""Yurochkin et al. (2019), SPAHM: errors at home / on all states, in degrees Fahrenheit."""


@dataclass(frozen=True)
class Code:
    """A published code: the call with its settings, what is measured, and where its numbers are."""

    code: str
    method: str
    call: str
    measured: str
    page: str
    published: tuple[str | Cell, ...]
    at_these: tuple[str | Cell, ...]
    by_default: tuple[str | Cell, ...]


def _random_start(method: str) -> Cell:
    return Cell("networks-random-start", f"MNIST + {method}", "n = 6")


def _convnets(row: str, column: str = "MNIST: loss") -> Cell:
    return Cell("fisher-convnets", row, column)


CODES = (
    Code("KL-fusion (Claici et al. 2020)", "kl", 'regularization=0.1, max_components=10, assignment="relaxed"',
         "simulated sites, s = σ = 0.5: Hausdorff distance to the true means", "kl_fusion",
         ("a curve",), (Cell("hausdorff", "any subset + 0.5 + 0.5", "paper's λ"),),
         (Cell("hausdorff", "any subset + 0.5 + 0.5", "default"),)),
    Code("KL-fusion, topics", "kl", "regularization=0.1, max_components=50",
         "20 Newsgroups: nats for each held-out token", "kl_fusion",
         ("a curve",), (Cell("newsgroups", "non-parametric", "log likelihood a token"),),
         (Cell("newsgroups", "auto", "log likelihood a token"),)),
    Code("AMPS (Campbell and How 2014)", "amps", "", "the same, as a baseline there", "kl_fusion",
         ("a curve",), (Cell("newsgroups", "AMPS", "log likelihood a token"),), ("the same",)),
    Code("SPAHM (Yurochkin et al. 2019)", "spahm", "mass=50.0",
         "temperatures: error at home / on all states, °F", "points", (PUBLISHED_TEMPERATURES,),
         (Cell("temperatures", "SPAHM, paper's variant", "self"), " / ",
          Cell("temperatures", "SPAHM, paper's variant", "across")),
         (Cell("temperatures", "SPAHM, Bayes product", "self"), " / ",
          Cell("temperatures", "SPAHM, Bayes product", "across"))),
    *(Code(code, method, call, "two MLPNets on MNIST: accuracy, %", "networks",
           (Cell("networks-same", row, "published"),), (Cell("networks-same", row, "accuracy, %"),), ("the same",))
      for code, method, call, row in (
          ("OT fusion (Singh and Jaggi 2020)", "ot", "", "OT"),
          ("Wasserstein barycenters (Akash et al. 2022)", "wb", "", "WB"),
          ("FedMA (Wang et al. 2020)", "fedma", "", "FedMA"))),
    Code("Wasserstein barycenters, from random weights", "wb", 'target=wide, start="random", epsilon=0.0005',
         "six MLPNets on MNIST: accuracy, %", "networks", (_random_start("WB, published"),),
         (_random_start("WB as published, reproduced"),), (_random_start("WB from the models' units"),)),
    Code("Gromov-Wasserstein barycenters (Akash et al. 2022)", "gwb",
         'mode="paper", epsilon=0.005, sent=False, signs=False, starts=("uniform",)',
         "two LSTMs on MNIST: points lost", "recurrent", (Cell("recurrent-drops", "LSTM, MNIST (5)", "published GWB"),),
         (Cell("recurrent-drops", "LSTM, MNIST (5)", "GWB, equation (43)"),),
         (Cell("recurrent-drops", "LSTM, MNIST (5)", "GWB"),)),
    Code("Git Re-Basin (Ainsworth et al. 2023)", "rebasin", "restarts=1", "two MLPNets on MNIST: accuracy, %",
         "networks", ("other networks",), ("not run",), (Cell("networks-same", "Re-Basin", "accuracy, %"),)),
    Code("Fisher merging (Matena and Raffel 2022)", "fisher", 'structure="diagonal", prior="ignored"',
         "three ConvNets on MNIST: loss, nats", "fisher", (_convnets("Fisher diagonal (10)", "published"),),
         (_convnets("Fisher diagonal (10)"),), (_convnets("low rank (10)"), ", low rank")),
    Code("self-supervised Fisher (Recasens et al. 2023)", "ssf", "mask_rate=0.2, window=5000",
         "the same", "fisher", (_convnets("SSF, window of 5,000 (3)", "published"),),
         (_convnets("SSF, window of 5,000 (3)"),), (_convnets("SSF (10)"),)),
    Code("KL-fusion of Bayesian networks (Claici et al. 2020)", "kl", 'outgoing="sum", max_units=390',
         "five sites of MNIST: accuracy, %", "bayesian",
         (Cell("bnn-scores", "KL-fusion, 1", "published: accuracy, %"),),
         (Cell("bnn-scores", "KL-fusion, 1", "accuracy, %"),), (Cell("bnn-scores", "KL-fusion, n/J", "accuracy, %"),)),
)  # fmt: skip


def published_code_table(tables: Tables) -> str:
    """Return for every code the call with its settings, its number, and ours at these settings and by default."""
    lines = [
        "| code | method | settings | measured | published | here, at these settings | here, by default | page |",
        f"| --- |{' --- |' * 7}",
    ]
    for one in CODES:
        numbers = (
            "".join(part if isinstance(part, str) else text_of(part, tables) for part in parts)
            for parts in (one.published, one.at_these, one.by_default)
        )
        call = f"`{one.call}`" if one.call else "none"
        page = f"[evidence](../evidence/{one.page}.md)"
        lines.append(f"| {one.code} | `{one.method}` | {call} | {one.measured} | {' | '.join(numbers)} | {page} |")
    return "\n".join(lines) + "\n"
