"""The server of a masked sum: what it agrees on after each step, and the sum, without a transport.

It has no secret: everything is a function of the plan and of the sites' messages, so that a server that was killed gets
the same from the same files.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np

from consilience.errors import InputError, Problem
from consilience.federated.masking import fixed_point, keys, shamir
from consilience.federated.masking.fixed_point import Words
from consilience.federated.masking.messages import (
    ADVERTISE,
    CONFIRM,
    DEAL,
    DIGEST_BYTES,
    MASK,
    REVEAL,
    SEALED_BYTES,
    STEP_NAMES,
    Message,
    as_bytes,
    shape_problem,
)
from consilience.federated.masking.plan import MaskedPlan
from consilience.federated.masking.site import (
    NOTHING,
    OF_KEY,
    OF_SEED,
    own_seed,
    pair_seed,
    share_digest,
    transcript_of,
)
from consilience.federated.masking.site_secret import commitment

Messages = Mapping[str, Message]
"""Messages of one step, by site."""


class MaskedServer:
    """The server's side of one masked sum.

    `agreed_keys`, `agreed_sum` and `agreed_confirmations` are what was agreed on after steps 1, 3 and 4;
    `agreed_shares` has for each site the shares for it. All steps raise InputError with fewer sites than the threshold.
    """

    def __init__(self, plan: MaskedPlan) -> None:
        self.plan, self.round_id = plan, plan.round_id
        self.agreed_keys: Message | None = None
        self.agreed_shares: dict[str, Message] = {}
        self.agreed_sum: Message | None = None
        self.agreed_confirmations: Message | None = None
        self._digests: dict[str, Any] = {}

    def expected(self, step: int) -> tuple[str, ...]:
        """Return the sites that may send a message of a step: those whose message of the step before counts."""
        if step == ADVERTISE:
            return self.plan.sites
        before = self.agreed_keys if step == DEAL else next(iter(self.agreed_shares.values()), None)
        if step > MASK:
            before = self.agreed_sum
        return () if before is None else before.sites

    def problem(self, step: int, site: str, message: Message) -> str | None:
        """Return why a site's message cannot be one of this step; None where it can."""
        if message.round_id != self.round_id or message.step != step or message.sites != (site,):
            return "is a message of another round, step or site"
        if site not in self.expected(step):
            return f"is late: the sum goes on without its {STEP_NAMES[step - 1]}"
        shapes = self._shapes(step)
        if (wrong := shape_problem(message, shapes)) is not None:
            return wrong
        text = keys.signed_text(self.round_id, step, site, message.payload)
        if not keys.verify(self.plan.keys[site], message.signature, text):
            return "is not signed with its key"
        if step == ADVERTISE:
            return _key_problem(message)
        if step == CONFIRM and message.arrays["seen"].tobytes() != self.transcript:
            return "has seen other sites than the server: somebody between lies"
        return None

    def _shapes(self, step: int) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return the arrays of a step, with their shapes and types."""
        n_keys, n_dealers = len(self.expected(DEAL)), len(self.expected(MASK))
        shapes: dict[int, dict[str, tuple[tuple[int, ...], str]]] = {
            ADVERTISE: {"keys": ((3, keys.KEY_BYTES), "uint8")},
            DEAL: {"boxes": ((n_keys, SEALED_BYTES), "uint8"), "digests": ((n_keys, 2, DIGEST_BYTES), "uint8")},
            MASK: {"words": ((self.plan.length, 2), "uint64")},
            CONFIRM: {"seen": ((keys.KEY_BYTES,), "uint8")},
            REVEAL: {"kinds": ((n_dealers,), "uint8"), "shares": ((n_dealers, shamir.ELEMENT_BYTES), "uint8")},
        }
        return shapes[step]

    @property
    def transcript(self) -> bytes:
        """The digest that sites confirm."""
        if self.agreed_keys is None or self.agreed_sum is None:
            raise InputError("the masked sum", "has not come to step 4", code="E-ROUND")
        return transcript_of(self.agreed_keys, self.expected(MASK), self.agreed_sum.sites)

    def agree_on_keys(self, messages: Messages) -> Message:
        """Return the keys of all sites, as they signed them."""
        sites = self._enough(ADVERTISE, messages)
        arrays = {
            "keys": np.stack([messages[site].arrays["keys"] for site in sites]),
            "signatures": as_bytes([messages[site].signature for site in sites], keys.SIGNATURE_BYTES),
        }
        self.agreed_keys = Message(self.round_id, ADVERTISE, sites, arrays)
        return self.agreed_keys

    def agree_on_shares(self, messages: Messages) -> Mapping[str, Message]:
        """Return for each site whose shares came those that are for it."""
        sites, row_of = self._enough(DEAL, messages), {site: row for row, site in enumerate(self.expected(DEAL))}
        boxes = {site: messages[site].arrays["boxes"] for site in sites}
        self._digests = {site: messages[site].arrays["digests"] for site in sites}
        self.agreed_shares = {
            site: Message(
                self.round_id, DEAL, sites, {"boxes": np.stack([boxes[dealer][row_of[site]] for dealer in sites])}
            )
            for site in sites
        }
        return self.agreed_shares

    def agree_on_sum(self, messages: Messages) -> Message:
        """Return whose numbers are summed."""
        self.agreed_sum = Message(self.round_id, MASK, self._enough(MASK, messages), {})
        return self.agreed_sum

    def agree_on_confirmations(self, messages: Messages) -> Message:
        """Return the signatures of the sites that have confirmed whose numbers are summed."""
        sites = self._enough(CONFIRM, messages)
        signatures = as_bytes([messages[site].signature for site in sites], keys.SIGNATURE_BYTES)
        self.agreed_confirmations = Message(self.round_id, CONFIRM, sites, {"signatures": signatures})
        return self.agreed_confirmations

    def open(self, masked: Messages, openings: Messages) -> tuple[Words, list[Problem]]:
        """Return the sum (L, 2), and which sites opened wrong shares.

        The messages are of steps 3 and 5, by site. Raises InputError with fewer right shares than the threshold of any
        secret, and for a site whose shares give another secret than it had committed to.
        """
        self._enough(REVEAL, openings)
        if self.agreed_keys is None or self.agreed_sum is None:
            raise InputError("the masked sum", "has not come to step 5", code="E-ROUND")
        summed, dealers = self.agreed_sum.sites, self.expected(MASK)
        shares, problems = self._right_shares(openings, dealers, set(summed))
        advertised = dict(zip(self.agreed_keys.sites, self.agreed_keys.arrays["keys"], strict=True))
        weights: dict[tuple[int, ...], list[int]] = {}  # Lagrange's, which most secrets have in common
        secrets = {site: self._rebuilt(site, shares[site], weights, problems) for site in dealers}
        result = np.zeros((self.plan.length, 2), np.uint64)
        for site in summed:
            result = fixed_point.add(result, masked[site].arrays["words"])
        for site in dealers:
            if site in summed:
                if commitment(self.round_id, secrets[site]) != advertised[site][2].tobytes():
                    text = "dealt shares of another seed than it had committed to: nothing can be opened"
                    raise InputError(site, text, code="E-ROUND")
                own = keys.mask(own_seed(self.round_id, secrets[site]), self.plan.length)
                result = fixed_point.add(result, fixed_point.negated(own))
                continue
            if keys.public_of(secrets[site]) != advertised[site][1].tobytes():
                text = "dealt shares of another key than it had advertised: nothing can be opened"
                raise InputError(site, text, code="E-ROUND")
            for other in summed:
                seed = pair_seed(self.round_id, secrets[site], advertised[other][1].tobytes())
                one = keys.mask(seed, self.plan.length)
                # What `other` added stays in the sum: PRG for a site of a higher name, - PRG for one of a lower.
                result = fixed_point.add(result, fixed_point.negated(one) if other < site else one)
        return result, problems

    def _right_shares(
        self, openings: Messages, dealers: tuple[str, ...], summed: set[str]
    ) -> tuple[dict[str, dict[int, int]], list[Problem]]:
        """Return for each secret the shares by party whose digest is that of its dealer, and the others as problems."""
        row_of = {site: row for row, site in enumerate(self.expected(DEAL))}
        shares: dict[str, dict[int, int]] = {site: {} for site in dealers}
        problems = []
        for opener in sorted(openings):
            message, party = openings[opener], self.plan.party(opener)
            for row, dealer in enumerate(dealers):
                kind, share = int(message.arrays["kinds"][row]), message.arrays["shares"][row].tobytes()
                needed = OF_SEED if dealer in summed else OF_KEY
                dealt = self._digests[dealer][row_of[opener], needed - 1].tobytes()
                if kind == NOTHING:
                    problems.append(Problem(opener, f"could not open the share that {dealer} dealt to it"))
                elif kind != needed or share_digest(share) != dealt:
                    problems.append(Problem(opener, f"opened another share than {dealer} dealt to it"))
                else:
                    shares[dealer][party] = int.from_bytes(share, "little")
        return shares, problems

    def _rebuilt(
        self, site: str, shares: Mapping[int, int], weights: dict[tuple[int, ...], list[int]], problems: list[Problem]
    ) -> bytes:
        """Return the 32 bytes of a secret from its shares."""
        parties = tuple(sorted(shares)[: self.plan.threshold])
        if len(parties) < self.plan.threshold:
            text = f"{len(shares)} right shares of its secret were opened, and {self.plan.threshold} make it"
            raise InputError([Problem(site, text), *problems])
        if parties not in weights:
            weights[parties] = shamir.lagrange_at_zero(parties)
        secret = sum(w * shares[party] for w, party in zip(weights[parties], parties, strict=True)) % shamir.PRIME
        return (secret % (1 << (8 * keys.KEY_BYTES))).to_bytes(keys.KEY_BYTES, "little")

    def _enough(self, step: int, messages: Messages) -> tuple[str, ...]:
        """Return the sites whose messages count, sorted."""
        sites = tuple(sorted(messages))
        if len(sites) < self.plan.threshold:
            missing = sorted(set(self.expected(step)) - set(sites))
            text = f"{STEP_NAMES[step]} of {len(sites)} sites came, and this sum takes {self.plan.threshold}"
            remedy = "sites refuse a sum of nearly the sites of an earlier one" if step == CONFIRM else ""
            text = f"{text}; nothing of {', '.join(missing) or 'others'}"
            raise InputError(f"step {step}", text, remedy, "E-ROUND")
        return sites


def _key_problem(message: Message) -> str | None:
    """Return that a public key has no use: its agreements would be zero for everybody."""
    probe = sha256(b"consilience probe").digest()
    for row in message.arrays["keys"][:2]:
        try:
            keys.agree(probe, row.tobytes())
        except ValueError:
            return "has a key of small order, whose agreements everybody knows"
    return None
