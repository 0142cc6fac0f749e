"""Masked sums against plain ones: bytes and seconds at 10, 100 and 1,000 sites.

    nice python benchmarks/masked_sums.py              all cells; what is in the JSON file is not run again
    python experiments/write_tables.py                 the table of docs/evidence/security_tests.md

All sites and the server run one after another in one process, without a transport: all messages of all sites are made,
checked and opened, nothing is extrapolated. With ``--sample`` five sites of a thousand are measured alone, with all
that they read, and the server is not. *One site* is the mean over all sites of the seconds of its five steps, its
checks of what the server publishes among them; *server* is all that the server does, the check of every message among
it. Of the sites 5 % leave after they have dealt their shares, before their numbers, or none. Seconds are of one
processor. *Plain* is a float64 vector of each site, added up. Every masked sum is compared with the fixed-point sum.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from consilience.federated.masking import fixed_point, keys
from consilience.federated.masking.messages import (
    ADVERTISE,
    CONFIRM,
    DEAL,
    MASK,
    REVEAL,
    SEALED_BYTES,
    Message,
    as_bytes,
    payload_of,
)
from consilience.federated.masking.plan import MaskedPlan
from consilience.federated.masking.server import MaskedServer
from consilience.federated.masking.site import OF_SEED, MaskedSite, transcript_of
from consilience.federated.masking.site_secret import SiteSecret

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
from record import versions

RESULT = Path(__file__).with_suffix(".json")
CELLS = ((10, 1_000), (10, 1_000_000), (100, 1_000), (100, 100_000), (300, 1_000), (1_000, 1_000))
"""Sites and numbers."""
SAMPLE_OF, SAMPLE = 1_000, 5
"""Sites, and how many of them are measured where only one site's part is: ``--sample``."""


class Clock:
    """Seconds of a processor by who spends them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, name: str, work: Callable[[], Any]) -> Any:
        """Return what comes of some work, and count its seconds."""
        start = time.process_time()
        result = work()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - start
        return result


def run(n_sites: int, length: int, n_gone: int) -> dict[str, Any]:
    """Return bytes and seconds of one masked sum."""
    rng, clock = np.random.default_rng(n_sites), Clock()
    signing = {f"site-{number:04d}": Ed25519PrivateKey.generate() for number in range(n_sites)}
    plan = MaskedPlan({site: keys.signing_public(key) for site, key in signing.items()}, length)
    sites = {site: MaskedSite(plan, site, key, SiteSecret.random()) for site, key in signing.items()}
    server, gone = MaskedServer(plan), set(sorted(sites)[:n_gone])
    vectors = {site: rng.normal(size=length) for site in sites}
    sent, received = dict.fromkeys(sites, 0), dict.fromkeys(sites, 0)

    def collect(step: int, answer: Callable[[str], Message], out: set[str]) -> dict[str, Message]:
        messages = {}
        for site in server.expected(step):
            if site in out:
                continue
            messages[site] = clock.time("sites", lambda site=site: answer(site))
            sent[site] += len(messages[site].data)
            vars(messages[site]).pop("data")  # its bytes were only to be counted
            problem = clock.time("server", lambda site=site: server.problem(step, site, messages[site]))
            if problem is not None:
                raise RuntimeError(f"{site}: {problem}")
        return messages

    def publish(message: Message, to: tuple[str, ...]) -> None:
        size = len(message.data)
        vars(message).pop("data")
        for site in to:
            received[site] += size

    advertised = collect(ADVERTISE, lambda site: sites[site].advertise(), set())
    agreed_keys = clock.time("server", lambda: server.agree_on_keys(advertised))
    publish(agreed_keys, server.expected(DEAL))
    dealt = collect(DEAL, lambda site: sites[site].deal(agreed_keys), set())
    shares = clock.time("server", lambda: server.agree_on_shares(dealt))
    for site, message in shares.items():
        publish(message, (site,))

    def masked_numbers(site: str) -> Message:
        words = fixed_point.encode(vectors[site], n_sites)
        return sites[site].mask(agreed_keys, shares[site], words)

    masked = collect(MASK, masked_numbers, gone)
    agreed_sum = clock.time("server", lambda: server.agree_on_sum(masked))
    publish(agreed_sum, agreed_sum.sites)
    confirmed = collect(CONFIRM, lambda site: sites[site].confirm(agreed_keys, shares[site], agreed_sum), gone)
    confirmations = clock.time("server", lambda: server.agree_on_confirmations(confirmed))
    publish(confirmations, agreed_sum.sites)
    opened = collect(
        REVEAL, lambda site: sites[site].reveal(agreed_keys, shares[site], agreed_sum, confirmations), gone
    )
    total, problems = clock.time("server", lambda: server.open(masked, opened))
    plain = fixed_point.total([fixed_point.encode(vectors[site], n_sites) for site in agreed_sum.sites])
    if problems or not np.array_equal(total, plain):
        raise RuntimeError(f"the masked sum is another than the plain one; {problems}")
    clock.time("plain", lambda: np.sum([vectors[site] for site in agreed_sum.sites], axis=0))
    stayed = sorted(set(sites) - gone)
    return {
        "sites": n_sites,
        "numbers": length,
        "gone": n_gone,
        "threshold": plan.threshold,
        "bytes_sent": float(np.mean([sent[site] for site in stayed])),
        "bytes_received": float(np.mean([received[site] for site in stayed])),
        "bytes_plain": 8 * length,
        "seconds_site": clock.seconds["sites"] / n_sites,
        "seconds_server": clock.seconds["server"],
        "seconds_plain": clock.seconds["plain"],
    }


def run_sample(n_sites: int, length: int, n_measured: int) -> dict[str, Any]:
    """Return bytes and seconds of single sites among many, all messages that they read being those of real sites.

    The others do what the measured ones need and no more: keys, the boxes for these, and confirmations.
    """
    clock, rng = Clock(), np.random.default_rng(n_sites)
    signing = {f"site-{number:04d}": Ed25519PrivateKey.generate() for number in range(n_sites)}
    plan = MaskedPlan({site: keys.signing_public(key) for site, key in signing.items()}, length)
    sites = {site: MaskedSite(plan, site, key, SiteSecret.random()) for site, key in signing.items()}
    measured, server = sorted(sites)[:n_measured], MaskedServer(plan)
    messages = {site: [clock.time("sites", site_.advertise)] for site, site_ in sites.items() if site in measured}
    rest = {site: site_.advertise() for site, site_ in sites.items() if site not in measured}
    agreed_keys = server.agree_on_keys({**rest, **{site: one[0] for site, one in messages.items()}})
    public = {site: rows[0].tobytes() for site, rows in zip(agreed_keys.sites, agreed_keys.arrays["keys"], strict=True)}
    for site in measured:
        messages[site].append(clock.time("sites", lambda site=site: sites[site].deal(agreed_keys)))
    boxes: dict[str, list[bytes]] = {site: [] for site in measured}
    for dealer in agreed_keys.sites:
        for site in measured:
            if dealer in measured:
                boxes[site].append(messages[dealer][1].arrays["boxes"][agreed_keys.sites.index(site)].tobytes())
            else:
                boxes[site].append(sites[dealer].box_for(site, public[site]))
    shares = {
        site: Message(plan.round_id, DEAL, agreed_keys.sites, {"boxes": as_bytes(boxes[site], SEALED_BYTES)})
        for site in measured
    }
    for site in measured:
        words = fixed_point.encode(rng.normal(size=length), n_sites)
        mask = clock.time("sites", lambda site=site, words=words: sites[site].mask(agreed_keys, shares[site], words))
        messages[site].append(mask)
    agreed_sum = Message(plan.round_id, MASK, agreed_keys.sites, {})
    seen = {"seen": np.frombuffer(transcript_of(agreed_keys, agreed_keys.sites, agreed_keys.sites), np.uint8)}
    signatures = [
        key.sign(keys.signed_text(plan.round_id, CONFIRM, site, payload_of(seen))) for site, key in signing.items()
    ]
    confirmations = Message(
        plan.round_id, CONFIRM, agreed_keys.sites, {"signatures": as_bytes(signatures, keys.SIGNATURE_BYTES)}
    )
    for site in measured:
        read = agreed_keys, shares[site], agreed_sum
        messages[site].append(clock.time("sites", lambda site=site, read=read: sites[site].confirm(*read)))
        reveal = clock.time("sites", lambda site=site, read=read: sites[site].reveal(*read, confirmations))
        messages[site].append(reveal)
        if not np.all(reveal.arrays["kinds"] == OF_SEED):
            raise RuntimeError(f"{site}: could not open all shares")
    first = measured[0]
    return {
        "sites": n_sites,
        "numbers": length,
        "gone": 0,
        "threshold": plan.threshold,
        "bytes_sent": float(sum(len(message.data) for message in messages[first])),
        "bytes_received": float(
            sum(len(message.data) for message in (agreed_keys, shares[first], agreed_sum, confirmations))
        ),
        "bytes_plain": 8 * length,
        "seconds_site": clock.seconds["sites"] / n_measured,
        "measured_sites": n_measured,
    }


def main() -> None:
    """Run the cells that are not in the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, help="Only cells of so many sites.")
    parser.add_argument("--sample", action="store_true", help="Measure single sites among a thousand, and no more.")
    arguments = parser.parse_args()
    asked = arguments.sites
    stored = json.loads(RESULT.read_text()) if RESULT.exists() else {"cells": []}
    cells = {(cell["sites"], cell["numbers"], cell["gone"]): cell for cell in stored["cells"]}
    if arguments.sample:
        key = SAMPLE_OF, 1_000, 0
        if key not in cells:
            cells[key] = run_sample(SAMPLE_OF, 1_000, SAMPLE)
            _write(cells)
        return
    for n_sites, length in CELLS:
        for n_gone in (0, max(1, n_sites // 20)):
            key = n_sites, length, n_gone
            is_whole = key in cells and "measured_sites" not in cells[key]
            if is_whole or asked not in (None, n_sites):
                continue
            cells[key] = run(*key)
            print(json.dumps(cells[key]), flush=True)  # noqa: T201  (progress of a long run)
            _write(cells)


def _write(cells: dict[tuple[int, int, int], dict[str, Any]]) -> None:
    """Write the cells so far."""
    text = {"cells": [cells[one] for one in sorted(cells)], "versions": versions()}
    RESULT.write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main()
