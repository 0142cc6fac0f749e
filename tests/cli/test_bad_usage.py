"""Options, weights and recipes that make no sense: one clear line; exit code 2 for usage, 1 for a bad recipe."""

import re

import pytest

import consilience as cs

TWO = ("a.safetensors", "b.safetensors")
OUTPUT = ("-o", "fused.safetensors")

OPTIONS = {
    "--method mean": r"method 'mean' does not exist for posteriors, did you mean average\?; there are kl, spahm",
    "--set speed=9": "method 'kl' has no option speed; it has assignment, combine",
    "--set regularization": "--set regularization: expected OPTION=VALUE",
    "--set =1": "--set =1: expected OPTION=VALUE",
    "--set n_components=[[": r"--set n_components=\[\[: the value is not valid YAML",
    "--set n_components=2020-13-45": "option n_components must be a positive integer or None, found '2020-13-45'",
    f"--set n_components={'[' * 700}": "the value is not valid YAML",
    "--set n_components=few": "kl: option n_components must be a positive integer or None, found 'few'",
    "--set n_components=0": "must be a positive integer or None, found 0",
    "--set restarts=yes": "kl: option restarts must be a positive integer, found True",
    "--set regularization=-1": "kl: option regularization must be 'auto' or a number that is not negative, found -1",
    "--set regularization=.nan": "found nan",
    "--set min_count=.inf": "--min-count: expected a number that is not negative, found inf",
    "--set direction=[up]": r"kl: option direction must be 'forward' or 'reverse', found \['up'\]",
    "--set combine={}": "kl: option combine must be 'auto', 'hierarchical', 'product' or 'barycenter', found {}",
    "--set models=c": "models: not an option of a method",
    "--set weights=1": "weights: not an option of a method",
    "--weights 1": r"weights of the models: expected 2 numbers, one for each, found shape \(1,\)",
    "--weights 1,2,3": r"expected 2 numbers, one for each, found shape \(3,\)",
    "--weights 1,-1": r"must be finite, not negative and not all zero, found \[1.0, -1.0\]",
    "--weights 1,nan": "must be finite",
    "--weights 1,inf": "must be finite",
    "--weights 0,0": "not all zero",
    "--weights 1;2": "--weights 1;2: expected numbers separated by commas",
    "--weights 1,": "expected numbers separated by commas",
}


@pytest.mark.parametrize("words", OPTIONS)
def test_options_that_make_no_sense(command, unchanged, words):
    unchanged()
    done = command("fuse", *TWO, *OUTPUT, *words.split())
    assert (done.code, done.out) == (2, "")
    (line,) = done.complaints()
    assert re.search(OPTIONS[words], line), line


@pytest.mark.parametrize("words", ["--weights 1", "--weights 1,nan"])
def test_check_counts_weights_among_the_problems(command, words):
    done = command("check", *TWO, *words.split())
    assert (done.code, len(done.complaints())) == (1, 1)


@pytest.mark.parametrize("rng", [-1, 1.5, "seed", None])
def test_seeds_that_make_no_sense(folder, rng):
    with pytest.raises(
        cs.errors.OptionError, match=r"^rng: expected a Generator or an integer that is not negative, found "
    ):
        cs.fuse(TWO, rng=rng)


@pytest.mark.parametrize("models", [{"a", "b"}, 5])
def test_models_must_be_a_list(models):
    with pytest.raises(cs.errors.InputError, match=r"^models: expected a list of models or paths, found "):
        cs.fuse(models)


def test_a_weight_of_zero_leaves_a_model_out(command):
    assert command("fuse", *TWO, *OUTPUT, "--weights", "0,1", "--quiet").code == 0


@pytest.mark.parametrize("value", ["few", "-5", ".inf"])
def test_every_method_checks_min_count(command, value):
    assert command("fuse", *TWO, *OUTPUT, "--method", "kmeans", "--set", f"min_count={value}").code == 2


USAGE = {
    "": "Usage: consilience",
    "melt": "No such command 'melt'",
    "fuse": "Missing argument 'MODELS...'",
    "fuse -o c": "Missing argument 'MODELS...'",
    "fuse a.safetensors b.safetensors": "Missing option '-o'",
    "fuse a.safetensors -o c --fast": "No such option",
    "fuse a.safetensors -o c --seed one": "'one' is not a valid integer",
    "fuse a.safetensors -o c --seed -1": "-1 is not in the range x>=0",
    "check": "Missing argument 'MODELS...'",
    "inspect": "Missing argument 'FILE'",
    "demo --seeds 0": "0 is not in the range x>=1",
}


@pytest.mark.parametrize("words", USAGE)
def test_usage_is_explained(command, unchanged, words):
    unchanged()
    done = command(*words.split())
    assert (done.code, done.out) == (2, "")
    assert "Usage: consilience" in done.err
    assert USAGE[words] in done.err


@pytest.mark.parametrize("words", [[], ["round"]])
def test_without_a_command_the_help_is_printed_once(command, words):
    done = command(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err == command(*words, "--help").out


def test_usage_errors_are_one_line_after_the_usage(command):
    done = command("fuse", *TWO, *OUTPUT, "--weights", "1,2,3")
    assert (done.code, done.out) == (2, "")
    assert len(done.complaints()) == 1


RECIPES = {
    "a list": ("[]", "is not a valid recipe at the whole"),
    "models a number": ("models: 5", "is not a valid recipe at models: Input should be a valid list"),
    "a model a number": ("models: [1]", "is not a valid recipe at models.0: Input should be a valid string"),
    "unknown key": ("colour: blue", "is not a valid recipe at colour"),
    "key a number": ("1: 2", "is not a valid recipe at 1"),
    "seed a truth": ("seed: true", "is not a valid recipe at seed"),
    "seed negative": ("seed: -1", "is not a valid recipe at seed: Input should be greater than or equal to 0"),
    "weights words": ("weights: [much, little]", "is not a valid recipe at weights.0"),
    "options a list": ("options: [fast]", "is not a valid recipe at options"),
    "option a number": ("options: {1: 2}", "is not a valid recipe at options.1"),
    "not YAML": ("models: [a\nmethod: kl", "is not valid YAML"),
    "not text": (b"\xff\xfe\x00", "is not valid YAML"),
    "no such day": ("seed: 2020-13-45", "is not a valid recipe at seed: Input should be a valid integer"),
    "deep": ("models: " + "[" * 700, "is not valid YAML: nested too deeply"),
    "malice": ("method: !!python/object/apply:os.system [echo]", "is not valid YAML"),
}


@pytest.mark.parametrize("case", RECIPES)
@pytest.mark.parametrize("name", ["fuse", "check"])
def test_a_bad_recipe_is_named(folder, command, unchanged, name, case):
    text, message = RECIPES[case]
    (folder / "recipe.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    unchanged()
    done = command(name, "--recipe", "recipe.yaml")
    assert (done.code, done.out) == (1, "")
    (line,) = done.complaints()
    assert line.startswith("recipe.yaml: ")
    assert re.search(message, line), line


MODELS = "models: [a.safetensors, b.safetensors]\noutput: fused.safetensors\n"
ASKED = {
    "missing file": ("models: [a.safetensors, nobody]\noutput: c", 1, "nobody: cannot be read: No such file"),
    "zero byte": ('models: [a.safetensors, "b\\0"]\noutput: c', 1, r"b\\x00: cannot be read: embedded null byte"),
    "zero byte out": (f'{MODELS[: MODELS.index("output")]}output: "c\\0"', 1, r"c\\x00: cannot be written"),
    "nobody matches": ("models: ['*.nothing', a.safetensors]\noutput: c", 1, r"\*.nothing: no file named .* is here"),
    "strange pattern": (
        "models: ['**.nothing', a.safetensors]\noutput: c",
        1,
        r"\*\*.nothing: no file named .* is here",
    ),
    "empty name": ("models: ['', a.safetensors]\noutput: c", 1, "c: is in a folder of models to fuse"),
    "no folder": (MODELS.replace("output: ", "output: nowhere/"), 1, "there is no folder nowhere"),
    "option unknown": (f"{MODELS}options: {{speed: 9}}", 2, "has no option speed"),
    "option reserved": (f"{MODELS}options: {{models: [c]}}", 2, "models: not an option of a method"),
    "weights too few": (f"{MODELS}weights: [1]", 2, "expected 2 numbers"),
    "method unknown": (f"{MODELS}method: mean", 2, "method 'mean' does not exist"),
}


@pytest.mark.parametrize("case", ASKED)
def test_a_recipe_that_asks_for_the_impossible(folder, command, unchanged, case):
    text, code, message = ASKED[case]
    (folder / "recipe.yaml").write_text(text)
    unchanged()
    done = command("fuse", "--recipe", "recipe.yaml")
    assert (done.code, done.out) == (code, "")
    (line,) = done.complaints()
    assert re.search(message, line), line


@pytest.mark.parametrize("text", ["", "seed: 3", "models: []"])
def test_a_recipe_without_models_needs_them_on_the_command_line(folder, command, text):
    (folder / "recipe.yaml").write_text(text)
    assert command("check", "--recipe", "recipe.yaml").code == 2
    assert command("check", "--recipe", "recipe.yaml", *TWO).code == 0


def test_a_recipe_that_is_not_there(command):
    done = command("fuse", "--recipe", "nowhere.yaml")
    (line,) = done.complaints()
    assert done.code == 1
    assert line.startswith("nowhere.yaml: cannot be read: No such file or directory; give ")
