"""Wrong combinations of options: click refuses each with status 2, before anything is read or written."""

import pytest

PLACE, FLOWER = "round", "flower://127.0.0.1:1"
KEYS = "--signing-keys keys --expect e"

WRONG = {
    "round": "Usage: consilience round",
    "round open": "Missing argument 'PLACE'",
    f"round open {PLACE} --sites a,b": "Missing option '-o' / '--output'",
    f"round open {PLACE} -o x": "Missing option '--sites'",
    f"round open {PLACE} -o x --sites a,b --insecure": "No such option --insecure",
    f"round open {PLACE} -o x --sites a,b --signing-keys keys": "No such option --signing-keys",
    f"round open {PLACE} -o x --sites a,b --epsilon 1": "No such option --epsilon",
    "round flower -o x --site-keys keys --insecure": "Missing option '--address'",
    "round flower -o x --address h:1 --insecure": "Missing option '--site-keys'",
    "round flower -o x --address h:1 --site-keys keys": "the server needs one of --certificates and --insecure",
    "round flower -o x --address h:1 --site-keys k --certificates c --insecure": "one of --certificates and --insecure",
    "round flower -o x --address h --site-keys k --insecure": "expected HOST:PORT",
    "round flower -o x --address h:1 --site-keys k --insecure --signing-keys s": "No such option --signing-keys",
    f"round masked {PLACE} -o x --expect e": "Missing option '--signing-keys'",
    f"round masked {PLACE} -o x --signing-keys keys": "Missing option '--expect'",
    f"round masked {PLACE} -o x {KEYS} --set robust=true": "No such option --set",
    f"round masked {PLACE} -o x {KEYS} --method ties": "No such option --method",
    f"round masked {PLACE} -o x {KEYS} --rounds 2": "No such option --rounds",
    f"round masked {PLACE} -o x {KEYS} --epsilon 1": "noise on averages of networks needs --delta; noise on averages",
    f"round masked {PLACE} -o x {KEYS} --site-keys k": "--site-keys is for flower://HOST:PORT, not for a folder or",
    f"round masked {PLACE} -o x {KEYS} --insecure": "--insecure is for flower://HOST:PORT, not for a folder or bucket",
    f"round masked {FLOWER} -o x {KEYS}": "needs --site-keys; flower://HOST:PORT needs one of --certificates and",
    f"round masked flower://host -o x {KEYS}": "expected HOST:PORT, such as 0.0.0.0:8000; found 'host'",
    f"round send --to {PLACE} --site a": "a call without --refine needs FILE",
    "round send a --site a": "Missing option '--to'",
    f"round send a --to {PLACE}": "a folder or bucket needs --site",
    f"round send a --to {PLACE} --site a --refine m:f": "FILE is for a call without --refine, not for a call with",
    f"round send --to {PLACE} --site a --refine m:f --attempt 2": "--attempt is for a call without --refine",
    f"round send --to {PLACE} --site a --signing-key k --refine m:f": "--refine is for an open round, not for a masked",
    f"round send a --to {PLACE} --site a --key k": "--key is for flower://HOST:PORT, not for a folder or bucket",
    f"round send a --to {PLACE} --site a --insecure": "--insecure is for flower://HOST:PORT, not for a folder",
    f"round send a --to {FLOWER}": "flower://HOST:PORT needs --key",
    f"round send a --to {FLOWER} --key k": "flower://HOST:PORT needs one of --root-certificates and --insecure",
    f"round send a --to {FLOWER} --key k --insecure --root-certificates c": "needs one of --root-certificates and",
    f"round send a --to {FLOWER} --key k --insecure --site a": "--site is for a folder or bucket, not for flower://",
    f"round send a --to {FLOWER} --key k --insecure --early": "--early is for a folder or bucket, not for flower://",
    "round send a --to flower://h:99999 --key k --insecure": "expected HOST:PORT",
    f"round send a --to {PLACE} --site a --signing-keys s": "a masked round needs --signing-key",
    f"round send a --to {PLACE} --site a --work w": "--work is for a masked round, not for an open round",
    f"round send a --to {PLACE} --site a --signing-key k --attempt 2": "--attempt is for an open round, not for a",
    f"round send a --to {PLACE} --site a --signing-key k --early": "--early is for an open round, not for a",
    f"round answer {PLACE} --site a": "Missing option '--data'",
    f"round answer {PLACE} --data x": "a folder or bucket needs --site",
    f"round answer {FLOWER} --data x --insecure": "flower://HOST:PORT needs --key",
    f"round answer {PLACE} --site a --data x --key k": "--key is for flower://HOST:PORT, not for a folder or bucket",
    f"round answer {PLACE} --site a --data x --module m:f --density m:f": "--module is for requests about other models",
    f"round answer {PLACE} --site a --data x --own o --density m:f": "--own is for requests about other models",
    f"round answer {PLACE} --site a --data x --receive r": "comes with follow",
    f"round answer {PLACE} --site a --data x --work w": "--work is for a masked round, not for an open round",
    f"round answer {PLACE} --site a --data x --signing-keys s": "a masked round needs --signing-key",
    f"round answer {PLACE} --site a --data x --signing-key k --follow": "--follow is for an open round, not for a",
    f"round answer {PLACE} --site a --data x --signing-key k --held-out h": "--held-out is for an open round",
    f"round answer {PLACE} --site a --data x --signing-key k --density m:f": "--density is for an open round",
    f"round fetch {PLACE}": "Missing option '-o' / '--output'",
    f"round fetch {PLACE} -o x --key k": "--key is for flower://HOST:PORT, not for a folder or bucket",
    f"round fetch {FLOWER} -o x --key k": "flower://HOST:PORT needs one of --root-certificates and --insecure",
    f"round fetch {FLOWER} -o x --key k --insecure --site a": "--site is for a folder or bucket, not for flower://",
    "round status": "Give PLACE, or -o OUTPUT of the server, or both",
    f"round status {FLOWER}": "give -o OUTPUT in place of PLACE",
    f"round check {PLACE}": "sites without keys needs --sites",
    f"round check {PLACE} --sites a,b --certificates c": "--certificates is for flower://HOST:PORT, not for a folder",
    f"round check {FLOWER} --sites a,b": "flower://HOST:PORT needs --site-keys",
    **{f"{old} {PLACE}": f"No such command '{old}'" for old in ("serve", "send", "answer")},
}


@pytest.mark.parametrize(("line", "said"), WRONG.items())
def test_options_that_do_not_go_together_are_usage(line, said, command, unchanged):
    unchanged()
    done = command(*line.split())
    assert done.code == 2
    shown = " ".join(done.err.split()).replace("option: ", "option ").replace("'", "")  # as versions of click differ
    assert said.replace("'", "") in shown


def test_usage_is_json_where_that_is_asked_for(command):
    done = command("round", "send", "a", "--to", PLACE, "--site", "a", "--key", "k", "--json")
    assert done.code == 2
    assert '"code": "E-USAGE"' in done.out
    assert "--key is for flower://HOST:PORT" in done.out
