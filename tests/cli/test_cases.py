"""Ways to call a command: what each needs and takes, all wrong combinations in one message, sections of the help."""

import itertools

import click
import pytest

from consilience.cli.cases import Case, CommandOfCases

TRANSPORT = (
    Case("a folder", lambda given: not given["to"].startswith("x:"), ("site",), ("attempt",)),
    Case("a server", lambda _given: True, ("key", ("certificate", "insecure"))),
)
PROTECTION = (
    Case("an open round", lambda given: given["secret"] is None, takes=("attempt",)),
    Case("a masked round", lambda _given: True, needs=("secret",), takes=("work",)),
)
NAMES = ("site", "attempt", "key", "certificate", "secret", "work")


def a_command():
    options = [click.Option(["--to"], required=True), click.Option(["--insecure"], is_flag=True)]
    options += [click.Option([f"--{name}"], default="1" if name == "attempt" else None) for name in NAMES]
    return CommandOfCases("send", params=options, choices=[TRANSPORT, PROTECTION], callback=lambda **_: None)


def refused(*words):
    try:
        a_command().make_context("send", list(words))
    except click.UsageError as error:
        return error.message
    return None


def test_a_call_is_taken_where_each_choice_has_what_it_needs_and_nothing_else():
    flags = [*[f"--{name}=1" for name in NAMES], "--insecure"]
    for place in ("folder", "x:server"):
        for count in range(len(flags) + 1):
            for given in itertools.combinations(flags, count):
                names = {flag.lstrip("-").partition("=")[0] for flag in given}
                server = {"key", "certificate", "insecure"}
                fits = names & server == set() and "site" in names
                if place == "x:server":
                    known = ("certificate" in names) != ("insecure" in names)
                    fits = "key" in names and known and not names & {"site", "attempt"}
                fits &= not names & {"attempt"} if "secret" in names else "work" not in names
                assert (refused("--to", place, *given) is None) == fits, (place, given)


def test_everything_wrong_is_in_one_message():
    assert refused("--to", "x:server", "--site=a", "--work=w") == (
        "--site is for a folder, not for a server; a server needs --key; a server needs one of --certificate and "
        "--insecure; --work is for a masked round, not for an open round."
    )


def test_a_default_is_no_option_that_was_given():
    assert refused("--to", "x:server", "--key=k", "--insecure") is None


def test_the_help_has_a_section_for_each_case():
    text = a_command().get_help(click.Context(a_command(), info_name="send"))
    sections = {part.splitlines()[0]: part for part in text.split("\n\n")}
    assert "--key" in sections["Options for a server:"]
    assert "--work" in sections["Options for a masked round:"]
    assert "--attempt" in sections["Options:"]  # of a folder and of an open round: of no single case
    assert "--key" not in sections["Options:"]


def test_a_case_that_applies_to_every_call_has_no_section():
    only = (Case("the server", lambda _given: True, needs=(("a", "b"),)),)
    command = CommandOfCases("x", params=[click.Option(["--a"]), click.Option(["--b"])], choices=[only])
    assert "Options for" not in command.get_help(click.Context(command))
    with pytest.raises(click.UsageError, match="the server needs one of --a and --b"):
        command.make_context("x", [])
