"""Masked sums without a transport: fixed point, secret sharing, and the five steps with sites that leave or lie."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_array_equal

from consilience.cli.commands import cli
from consilience.errors import FileFormatError, InputError, OptionError
from consilience.federated.masking import fixed_point, keys, shamir
from consilience.federated.masking.messages import ADVERTISE, CONFIRM, DEAL, MASK, REVEAL, Message, read_message
from consilience.federated.masking.network_sum import SumNoise
from consilience.federated.masking.plan import MaskedPlan, default_threshold
from consilience.federated.masking.site import OF_KEY, OF_SEED, MaskedSite
from consilience.federated.masking.site_secret import SiteSecret
from tests.federated.masked_sites import Exchange, signing_key

pytestmark = pytest.mark.covering(2)

SIZES = 10.0 ** np.arange(-30, 15)


def vectors(n_sites, length=20, seed=0):
    """Return numbers of very different sizes for every site."""
    rng = np.random.default_rng(seed)
    return {f"s{site:02d}": rng.normal(size=length) * rng.choice(SIZES, length) for site in range(n_sites)}


# Fixed point


@pytest.mark.parametrize("bits", [0, 20, 60, 90])
def test_words_are_the_numbers_rounded_half_to_even(bits):
    rng = np.random.default_rng(0)
    limit = fixed_point.largest(4, bits)
    sizes = SIZES[limit / 10 > SIZES]
    values = rng.normal(size=2000) * rng.choice(sizes, 2000)
    values = np.concatenate([values, [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 5e-324, limit * 0.999, -limit * 0.999]])
    expected = [round(Fraction(float(value)) * 2**bits) for value in values]  # of Fraction: half to even
    words = fixed_point.encode(values, 4, bits)
    assert fixed_point.to_integers(words) == expected
    assert_array_equal(fixed_point.from_integers(expected, 4), words)


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_integers_and_float32_are_exact_and_so_is_their_sum(dtype):
    rng = np.random.default_rng(1)
    rows = rng.integers(-(2**52), 2**52, size=(9, 50)) if dtype is np.int64 else rng.normal(size=(9, 50))
    rows = rows.astype(dtype)
    total = fixed_point.decode(fixed_point.total([fixed_point.encode(row, 9) for row in rows.astype(np.float64)]))
    exact = [float(sum(map(Fraction, map(float, column)))) for column in rows.T]  # rounded once
    assert total.tolist() == exact


def test_each_number_is_off_by_half_a_unit_at_most_and_the_sum_does_not_depend_on_order():
    rng = np.random.default_rng(2)
    values = rng.normal(size=(100, 30)) * 1e-3
    words = [fixed_point.encode(row, 100) for row in values]
    total = fixed_point.total(words)
    assert_array_equal(fixed_point.total([words[i] for i in rng.permutation(100)]), total)
    exact = [sum(map(Fraction, map(float, column))) for column in values.T]
    errors = [abs(Fraction(z, 2**60) - x) for z, x in zip(fixed_point.to_integers(total), exact, strict=True)]
    assert max(errors) <= Fraction(100, 2**61)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**66 / 3, -(2.0**66) / 3])
def test_a_number_out_of_range_is_refused(value):
    with pytest.raises(InputError, match=r"number 1 is .* sum of all sites is exact"):
        fixed_point.encode(np.array([0.0, value]), 3)
    assert fixed_point.encode(np.array([np.nextafter(2.0**66 / 3, 0.0)]), 3).shape == (1, 2)


def test_integers_out_of_range_are_refused():
    with pytest.raises(InputError, match="number 0 has 127 bits"):
        fixed_point.from_integers([2**126], 1)


def test_a_negated_number_adds_up_to_zero():
    words = fixed_point.from_integers([0, 1, -1, 2**64, -(2**64), 2**100 + 5], 2)
    assert not fixed_point.add(words, fixed_point.negated(words)).any()


# Secret sharing


@pytest.mark.parametrize(("n", "threshold"), [(2, 2), (5, 3), (7, 7), (150, 101)])
def test_any_shares_of_the_threshold_give_the_secret_and_one_less_is_refused(n, threshold):
    rng = np.random.default_rng(n)
    secret = int.from_bytes(rng.bytes(32), "little")
    coefficients = [shamir.element(rng.bytes(66)) for _ in range(threshold - 1)]
    shares = dict(zip(range(1, n + 1), shamir.share(secret, coefficients, range(1, n + 1)), strict=True))
    for _ in range(3):
        chosen = {int(party): shares[int(party)] for party in rng.permutation(n)[:threshold] + 1}
        assert shamir.combine(chosen, threshold) == secret
    chosen.pop(next(iter(chosen)))
    with pytest.raises(InputError, match=f"{threshold - 1} shares, and {threshold} make the secret"):
        shamir.combine(chosen, threshold)


def test_fewer_shares_than_the_threshold_fit_every_secret():
    shares = dict(zip((1, 2, 3), shamir.share(42, [5, 7], (1, 2, 3)), strict=True))
    two = {party: shares[party] for party in (1, 2)}
    for secret in (0, 43, shamir.PRIME - 1):
        # A third share that makes the two known ones shares of another secret: solve for f(3) by Lagrange's weights.
        weights = shamir.lagrange_at_zero((1, 2, 3))
        known = sum(w * two[party] for w, party in zip(weights, (1, 2), strict=False))
        third = (secret - known) * pow(weights[2], -1, shamir.PRIME) % shamir.PRIME
        assert shamir.combine({**two, 3: third}, 3) == secret


# The five steps


@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_masked_sum_is_the_fixed_point_sum(n):
    exchange = Exchange(vectors(n))
    total, problems = exchange.run()
    assert not problems
    assert_array_equal(total, exchange.plain_sum())


@pytest.mark.parametrize("last", [0, ADVERTISE, DEAL, MASK, CONFIRM])
@pytest.mark.parametrize("gone", [gone for size in (1, 2) for gone in combinations(range(5), size)], ids=str)
def test_sites_may_leave_after_any_step_while_the_threshold_stays(gone, last):
    exchange = Exchange(vectors(5), threshold=3)
    total, problems = exchange.run({f"s{site:02d}": last for site in gone})
    assert not problems
    summed = 5 if last >= MASK else 5 - len(gone)
    assert len(exchange.server.agreed_sum.sites) == summed
    assert_array_equal(total, exchange.plain_sum())


@pytest.mark.parametrize("steps", list(product([ADVERTISE, DEAL, MASK], repeat=2)), ids=str)
def test_sites_may_leave_after_different_steps(steps):
    exchange = Exchange(vectors(7), threshold=5)
    total, _ = exchange.run({"s01": steps[0], "s04": steps[1]})
    assert_array_equal(total, exchange.plain_sum())


@pytest.mark.parametrize("last", [0, ADVERTISE, DEAL, MASK, CONFIRM])
def test_below_the_threshold_nothing_is_opened(last):
    exchange = Exchange(vectors(5), threshold=4)
    with pytest.raises(InputError, match="of 3 sites came, and this sum takes 4"):
        exchange.run({"s01": last, "s03": last})


def test_a_masked_vector_says_nothing_of_the_numbers_under_it():
    """Words of a site under masks pass a test of bytes whatever is under them."""
    exchange = Exchange({name: np.zeros(4000) for name in vectors(3)})
    exchange.run()
    for message in exchange.messages[MASK].values():
        counts = np.bincount(message.arrays["words"].view(np.uint8).ravel(), minlength=256)
        chi_square = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
        assert 120 < chi_square < 420  # 255 degrees of freedom: beyond 6 deviations


def test_the_same_secret_says_the_same_again_in_every_step():
    exchange = Exchange(vectors(4), threshold=3)
    exchange.run()
    server, name = exchange.server, "s02"
    secret = SiteSecret.from_json(exchange.secrets[name].to_json(), "secret")
    again = MaskedSite(exchange.plan, name, exchange.sites[name].signing_key, secret)
    shares = server.agreed_shares[name]
    answers = {
        ADVERTISE: again.advertise(),
        DEAL: again.deal(server.agreed_keys),
        MASK: again.mask(server.agreed_keys, shares, exchange.words[name]),
        CONFIRM: again.confirm(server.agreed_keys, shares, server.agreed_sum),
        REVEAL: again.reveal(server.agreed_keys, shares, server.agreed_sum, server.agreed_confirmations),
    }
    for step, message in answers.items():
        assert message.data == exchange.messages[step][name].data


# Who lies


def test_a_site_refuses_both_shares_of_one_peer():
    """A server that lost a site after it had its numbers would ask for the key, too: then they were bare."""
    exchange = Exchange(vectors(5), threshold=3)
    exchange.run()
    server, name = exchange.server, "s00"
    without = Message(server.round_id, MASK, server.agreed_sum.sites[:-1], {})
    shares = server.agreed_shares[name]
    with pytest.raises(InputError, match="asks to open the sum of other sites than before"):
        exchange.sites[name].confirm(server.agreed_keys, shares, without)
    with pytest.raises(InputError, match="has no signature of s00 for what this site has seen"):
        exchange.sites[name].reveal(server.agreed_keys, shares, without, server.agreed_confirmations)
    first = exchange.messages[REVEAL][name].arrays["kinds"].tolist()
    assert first == [OF_SEED] * 5


def test_of_a_site_that_left_the_key_is_opened_and_not_the_seed():
    exchange = Exchange(vectors(5), threshold=3)
    exchange.run({"s03": DEAL})
    assert exchange.messages[REVEAL]["s00"].arrays["kinds"].tolist() == [OF_SEED] * 3 + [OF_KEY] + [OF_SEED]


def test_numbers_leave_under_the_same_masks_only_once():
    exchange = Exchange(vectors(4), threshold=3)
    exchange.run()
    server, name = exchange.server, "s01"
    shares = server.agreed_shares[name]
    with pytest.raises(InputError, match="asks to mask numbers for other sites than before"):
        exchange.sites[name].mask(server.agreed_keys, shares, exchange.words[name] + np.uint64(1))
    fewer = replace(shares, sites=shares.sites[:3], arrays={"boxes": shares.arrays["boxes"][:3]})
    with pytest.raises(InputError, match="asks to mask numbers for other sites than before"):
        exchange.sites[name].mask(server.agreed_keys, fewer, exchange.words[name])


def flipped(message, name, position=0):
    """Return a message with one bit of an array, or of the signature, the other way."""
    if name == "signature":
        changed = bytearray(message.signature)
        changed[position] ^= 1
        return replace(message, signature=bytes(changed))
    values = message.arrays[name].copy()
    view = values.reshape(-1).view(np.uint8)
    view[position] ^= 1
    return replace(message, arrays={**message.arrays, name: values})


MESSAGE_ARRAYS = {
    ADVERTISE: ["keys"],
    DEAL: ["boxes", "digests"],
    MASK: ["words"],
    CONFIRM: ["seen"],
    REVEAL: ["kinds", "shares"],
}


@pytest.mark.parametrize(
    ("step", "name"), [(s, n) for s, names in MESSAGE_ARRAYS.items() for n in [*names, "signature"]]
)
def test_a_flipped_bit_in_a_message_is_found_by_the_server(step, name):
    exchange = Exchange(vectors(3))
    for earlier in range(ADVERTISE, step + 1):
        exchange.advance(earlier)
    message = exchange.messages[step]["s01"]
    wrong = exchange.server.problem(step, "s01", flipped(message, name, 2))
    assert wrong in ("is not signed with its key", "has seen other sites than the server: somebody between lies")
    assert exchange.server.problem(step, "s01", message) is None
    assert "another round, step or site" in exchange.server.problem(step, "s00", message)


def test_a_flipped_bit_in_keys_from_the_server_is_found_by_every_site():
    exchange = Exchange(vectors(3))
    exchange.advance(ADVERTISE)
    for name in ("keys", "signatures"):
        position = exchange.server.agreed_keys.arrays[name][0].size + 3  # of the second site
        with pytest.raises(InputError, match="sent keys of s01 that s01 has not signed"):
            exchange.sites["s00"].deal(flipped(exchange.server.agreed_keys, name, position))


def test_a_flipped_bit_in_a_sealed_share_is_named_and_survived():
    exchange = Exchange(vectors(5), threshold=3)
    for step in (ADVERTISE, DEAL):
        exchange.advance(step)
    shares = exchange.server.agreed_shares
    shares["s00"] = flipped(shares["s00"], "boxes", 148 * 2 + 7)  # that s02 dealt to s00
    for step in (MASK, CONFIRM, REVEAL):
        exchange.advance(step)
    total, problems = exchange.server.open(exchange.messages[MASK], exchange.messages[REVEAL])
    assert [str(problem) for problem in problems] == ["s00: could not open the share that s02 dealt to it"]
    assert_array_equal(total, exchange.plain_sum())


def test_a_site_that_opens_a_wrong_share_is_named_and_survived():
    exchange = Exchange(vectors(5), threshold=3)
    exchange.run()
    openings = dict(exchange.messages[REVEAL])
    openings["s04"] = flipped(openings["s04"], "shares", 66 + 3)
    total, problems = exchange.server.open(exchange.messages[MASK], openings)
    assert [str(problem) for problem in problems] == ["s04: opened another share than s01 dealt to it"]
    assert_array_equal(total, exchange.plain_sum())
    few = {name: openings[name] for name in ("s00", "s01", "s04")}
    with pytest.raises(InputError, match="s01: 2 right shares of its secret were opened, and 3 make it"):
        exchange.server.open(exchange.messages[MASK], few)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_site_that_deals_shares_of_another_secret_is_named(leaves):
    exchange = Exchange(vectors(4), threshold=3)
    liar = exchange.secrets["s02"]
    other = SiteSecret.random()
    keep = {"seed": liar.seed, "masking_key": liar.masking_key, "public_keys": liar.public_keys}
    exchange.advance(ADVERTISE)
    vars(liar).update(seed=other.seed, masking_key=other.masking_key)
    exchange.advance(DEAL)
    vars(liar).update(keep)
    gone = ["s02"] if leaves else []
    for step in (MASK, CONFIRM, REVEAL):
        exchange.advance(step, gone)
    with pytest.raises(InputError, match=f"s02: dealt shares of another {'key' if leaves else 'seed'}"):
        exchange.server.open(exchange.messages[MASK], exchange.messages[REVEAL])


def test_a_server_that_tells_sites_of_different_sums_gets_no_openings():
    exchange = Exchange(vectors(5), threshold=4)
    for step in (ADVERTISE, DEAL, MASK):
        exchange.advance(step)
    server = exchange.server
    other = Message(server.round_id, MASK, server.agreed_sum.sites[:4], {})
    seen = {
        name: exchange.sites[name].confirm(
            server.agreed_keys, server.agreed_shares[name], other if name == "s00" else server.agreed_sum
        )
        for name in server.agreed_sum.sites
    }
    assert "somebody between lies" in server.problem(CONFIRM, "s00", seen["s00"])
    confirmations = server.agree_on_confirmations({name: one for name, one in seen.items() if name != "s00"})
    with pytest.raises(InputError, match="has no signature of s01 for what this site has seen"):
        exchange.sites["s00"].reveal(server.agreed_keys, server.agreed_shares["s00"], other, confirmations)


def test_a_key_of_small_order_is_refused():
    exchange = Exchange(vectors(3))
    exchange.advance(ADVERTISE)
    site = exchange.sites["s00"]
    rows = exchange.messages[ADVERTISE]["s00"].arrays["keys"].copy()
    rows[1] = 0
    message = site._signed(ADVERTISE, {"keys": rows})
    assert "small order" in exchange.server.problem(ADVERTISE, "s00", message)


def test_a_site_takes_no_part_under_another_key_or_name():
    exchange = Exchange(vectors(3))
    with pytest.raises(InputError, match="s00: has another signing key than the plan says"):
        MaskedSite(exchange.plan, "s00", signing_key(99), SiteSecret.random())
    with pytest.raises(InputError, match="oslo: is not a site of this masked sum"):
        MaskedSite(exchange.plan, "oslo", signing_key(1), SiteSecret.random())


def test_messages_of_another_round_are_refused():
    one, other = Exchange(vectors(3)), Exchange(vectors(3, length=21))
    one.run()
    other.run()
    for step in MESSAGE_ARRAYS:
        assert "another round" in one.server.problem(step, "s00", other.messages[step]["s00"])
    with pytest.raises(InputError, match="another round or step"):
        one.sites["s00"].deal(other.server.agreed_keys)


# Plans, files, noise


def test_a_plan_is_the_same_bytes_whatever_the_order_and_says_what_to_know():
    public = {name: keys.signing_public(signing_key(seed)) for seed, name in enumerate(["b", "a"])}
    plan = MaskedPlan(public, 3)
    assert plan.data == MaskedPlan(dict(reversed(public.items())), 3).data
    assert MaskedPlan.from_json(plan.to_json(), "plan").round_id == plan.round_id
    assert "each of the two sites can compute" in plan.warnings()[0]
    ten = {f"s{i}": keys.signing_public(signing_key(i)) for i in range(10)}
    assert not MaskedPlan(ten, 3).warnings()
    assert "against one that lies it takes 7" in MaskedPlan(ten, 3, threshold=6).warnings()[0]
    assert default_threshold(10) == 7


@pytest.mark.parametrize("threshold", [1, 5, 11])
def test_a_threshold_of_half_of_the_sites_or_less_is_refused(threshold):
    ten = {f"s{i}": keys.signing_public(signing_key(i)) for i in range(10)}
    with pytest.raises(OptionError, match="expected more than half of the 10 sites"):
        MaskedPlan(ten, 3, threshold)


@pytest.mark.parametrize(
    "change",
    [{"threshold": 1}, {"length": 0}, {"sites": {"a": "00"}}, {"sites": {"a": "zz", "b": "yy"}}, {"more": 1}, {}],
    ids=str,
)
def test_a_plan_of_a_stranger_is_checked(change):
    public = {name: keys.signing_public(signing_key(seed)) for seed, name in enumerate(["a", "b"])}
    document = {**MaskedPlan(public, 3).to_json(), **change}
    if not change:
        document.pop("length")
    with pytest.raises(InputError, match="place: is no plan of a masked sum"):
        MaskedPlan.from_json(document, "place")


def test_messages_come_back_from_files_and_others_are_refused(tmp_path):
    exchange = Exchange(vectors(3))
    exchange.run()
    for step, messages in exchange.messages.items():
        (tmp_path / "message").write_bytes(messages["s01"].data)
        message = read_message(tmp_path / "message")
        assert message.data == messages["s01"].data
        assert exchange.server.problem(step, "s01", message) is None
    (tmp_path / "message").write_bytes(messages["s01"].data[:-1])
    with pytest.raises(FileFormatError):
        read_message(tmp_path / "message")


def test_an_inspection_says_what_a_message_tells_of_people(tmp_path):
    exchange = Exchange(vectors(3))
    exchange.run()
    for step, messages in exchange.messages.items():
        (tmp_path / "message").write_bytes(messages["s01"].data)
        done = CliRunner().invoke(cli, ["inspect", str(tmp_path / "message")])
        assert done.exit_code == 0, done.output
        assert f"{step}, from s01" in done.output
        assert "tells about people" in done.output


def test_noise_has_the_deviation_of_the_analytic_mechanism_in_the_sum():
    noise = SumNoise(1.0, 1e-6, clip=2.0)
    assert noise.scale == pytest.approx(2.0 * 4.2248, rel=1e-3)  # Balle and Wang (2018) at sensitivity 1: 4.22
    parts = np.sum([noise.part(20_000, 7) for _ in range(7)], axis=0)
    assert parts.std() == pytest.approx(noise.scale, rel=0.03)
    clipped = noise.clipped(np.full(100, 5.0))
    assert np.linalg.norm(clipped) == pytest.approx(2.0)
    assert_array_equal(noise.clipped(np.full(4, 0.5)), np.full(4, 0.5))


def test_noise_larger_than_the_signal_is_said():
    noise = SumNoise(1.0, 1e-6, clip=1.0)
    assert "the sum will say little" in noise.warning(100_000, 10, 7)
    assert noise.warning(100, 1000, 667) is None
