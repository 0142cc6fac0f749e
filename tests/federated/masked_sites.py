"""Masked sums without a transport: keys, plans, and all messages of a round in one process."""

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from consilience.federated.masking import fixed_point, keys
from consilience.federated.masking.messages import ADVERTISE, CONFIRM, DEAL, MASK, REVEAL
from consilience.federated.masking.plan import MaskedPlan
from consilience.federated.masking.server import MaskedServer
from consilience.federated.masking.site import MaskedSite
from consilience.federated.masking.site_secret import SiteSecret


def signing_key(seed):
    """Return a signing key that is the same for the same seed."""
    return Ed25519PrivateKey.from_private_bytes(bytes([seed % 256, seed // 256]) * 16)


def write_keys(folder, names):
    """Write a key of each site, and the public ones into a folder of their own; return the folder of these."""
    public = folder / "public"
    public.mkdir(parents=True)
    for seed, name in enumerate(names, start=1):
        key = signing_key(seed)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        (folder / f"{name}.key").write_bytes(private)
        (public / f"{name}.pub").write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    return public


class Exchange:
    """All sites and the server of one masked sum; who leaves after which step is told to `run`."""

    def __init__(self, vectors, threshold=0, fractional_bits=60):
        names = sorted(vectors)
        signing = {name: signing_key(seed) for seed, name in enumerate(names, start=1)}
        length = len(next(iter(vectors.values())))
        public = {name: keys.signing_public(key) for name, key in signing.items()}
        self.plan = MaskedPlan(public, length, threshold, fractional_bits)
        self.words = {
            name: fixed_point.encode(np.asarray(vector), len(names), fractional_bits)
            for name, vector in vectors.items()
        }
        self.secrets = {name: SiteSecret.random() for name in names}
        self.sites = {name: MaskedSite(self.plan, name, signing[name], self.secrets[name]) for name in names}
        self.server = MaskedServer(self.plan)
        self.messages = {}

    def advance(self, step, gone=()):
        """Let all sites but those that are gone answer a step, and the server agree on what came."""
        server, site = self.server, self.sites
        here = [name for name in server.expected(step) if name not in gone]
        shares = server.agreed_shares
        answers = {
            ADVERTISE: lambda name: site[name].advertise(),
            DEAL: lambda name: site[name].deal(server.agreed_keys),
            MASK: lambda name: site[name].mask(server.agreed_keys, shares[name], self.words[name]),
            CONFIRM: lambda name: site[name].confirm(server.agreed_keys, shares[name], server.agreed_sum),
            REVEAL: lambda name: site[name].reveal(
                server.agreed_keys, shares[name], server.agreed_sum, server.agreed_confirmations
            ),
        }
        self.messages[step] = {name: answers[step](name) for name in here}
        problems = {name: server.problem(step, name, one) for name, one in self.messages[step].items()}
        assert not any(problems.values()), problems
        agree = {
            ADVERTISE: server.agree_on_keys,
            DEAL: server.agree_on_shares,
            MASK: server.agree_on_sum,
            CONFIRM: server.agree_on_confirmations,
        }
        if step in agree:
            agree[step](self.messages[step])

    def run(self, gone_after=None):
        """Run all steps; return the sum and the problems. `gone_after` has the last step of who leaves."""
        gone_after = gone_after or {}
        for step in (ADVERTISE, DEAL, MASK, CONFIRM, REVEAL):
            self.advance(step, [name for name, last in gone_after.items() if last < step])
        return self.server.open(self.messages[MASK], self.messages[REVEAL])

    def plain_sum(self):
        """Return the fixed-point sum of those whose numbers came."""
        return fixed_point.total([self.words[name] for name in self.server.agreed_sum.sites])
