"""Chat templates by name render the public formats, and an output has them in the files of its tokenizer."""

import json

import pytest
import torch

import consilience as cs
from consilience.checkpoints.chat_templates import TEMPLATES, as_chat_template
from consilience.checkpoints.vocabularies import TOKENIZER_FILES
from tests.checkpoints.some_checkpoints import write

jinja2 = pytest.importorskip("jinja2")
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "So."},
    {"role": "user", "content": "And?"},
]
RENDERED = {
    "chatml": "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n"
    "<|im_start|>assistant\nSo.<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n",
    "llama3": "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nSo.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nAnd?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral": "<s> [INST] Be brief.\n\nWhy? [/INST] So.</s> [INST] And? [/INST]",
    "alpaca": "Be brief.\n\n### Instruction:\nWhy?\n\n### Response:\nSo.\n\n### Instruction:\nAnd?\n\n### Response:\n",
    "exaone": "[|system|]Be brief.[|endofturn|]\n[|user|]Why?\n[|assistant|]So.[|endofturn|]\n[|user|]And?\n"
    "[|assistant|]",
}


def render(template, messages, add_generation_prompt=True):
    """Render as transformers does."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(text):
        raise jinja2.TemplateError(text)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    ends = {"bos_token": "<s>", "eos_token": "</s>"}
    return environment.from_string(template).render(
        messages=messages, add_generation_prompt=add_generation_prompt, **ends
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_by_name_renders_its_format(name):
    assert render(TEMPLATES[name], TALK) == RENDERED[name]


@pytest.mark.parametrize("name", TEMPLATES)
def test_without_a_prompt_nothing_is_asked_of_the_assistant(name):
    assert RENDERED[name].startswith(render(TEMPLATES[name], TALK, add_generation_prompt=False).rstrip())


def test_mistral_refuses_turns_that_do_not_alternate():
    with pytest.raises(jinja2.TemplateError, match="must alternate"):
        render(TEMPLATES["mistral"], [TALK[1], TALK[1]])


def test_exaone_opens_without_a_system_message():
    assert render(TEMPLATES["exaone"], TALK[1:2]) == "[|system|][|endofturn|]\n[|user|]Why?\n[|assistant|]"


@pytest.fixture
def paths(tmp_path):
    """Three models with tokenizers: the first with a template of its own, the others with another."""
    made = []
    for number, template in enumerate(("{{ a }}", "{{ b }} ", [{"name": "default", "template": "{{ b }}"}])):
        path = write(tmp_path / str(number), {"w": torch.ones(3)})
        (path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 8, "chat_template": template}))
        made.append(path)
    return made


def templates(output):
    """Return the template of an output, which both of its files have."""
    stated = json.loads((output / "tokenizer_config.json").read_text())["chat_template"]
    assert (output / "chat_template.jinja").read_text() == stated
    return stated


def test_an_output_has_the_template_that_is_named(tmp_path, paths):
    (paths[0] / "chat_template.json").write_text("{}")
    done = cs.merge(paths, tmp_path / "out", chat_template="chatml")
    assert templates(done.output) == TEMPLATES["chatml"]
    assert json.loads((done.output / "tokenizer_config.json").read_text())["model_max_length"] == 8
    assert not (done.output / "chat_template.json").exists()
    assert done.provenance["recipe"]["chat_template"] == "chatml"


def test_auto_is_the_most_common_template_of_the_inputs(tmp_path, paths):
    done = cs.merge(paths, tmp_path / "out", chat_template="auto")
    assert templates(done.output) == "{{ b }}"
    (paths[1] / "chat_template.jinja").write_text("{{ a }}")  # newer readers look there first
    done = cs.merge(paths, tmp_path / "again", chat_template="auto")
    assert templates(done.output) == "{{ a }}"


def test_a_text_is_taken_as_it_is(tmp_path, paths):
    done = cs.merge(paths, tmp_path / "out", chat_template="{{ messages }}")
    assert templates(done.output) == "{{ messages }}"


def test_without_a_tokenizer_no_template_is_written(tmp_path):
    path = write(tmp_path / "a", {"w": torch.ones(3)})
    for name in TOKENIZER_FILES:
        (path / name).unlink(missing_ok=True)
    done = cs.merge([path, path], tmp_path / "out", chat_template="llama3")
    assert "the output has no tokenizer" in " ".join(done.notes)
    assert not (done.output / "chat_template.jinja").exists()
    assert "no checkpoint has one" in " ".join(cs.merge([path], tmp_path / "auto", chat_template="auto").notes)


def test_a_name_that_there_is_not_is_refused(tmp_path, paths):
    with pytest.raises(cs.errors.OptionError, match="none named 'lama3', did you mean llama3"):
        cs.merge(paths, tmp_path / "out", chat_template="lama3")
    assert as_chat_template("auto") == "auto"


def test_transformers_reads_the_template(tmp_path, paths):
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "<s>": 1}))
    for path in paths:
        words.save(str(path / "tokenizer.json"))
        (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    done = cs.merge(paths, tmp_path / "out", chat_template="llama3")
    read = transformers.PreTrainedTokenizerFast.from_pretrained(done.output)
    assert read.apply_chat_template(TALK, tokenize=False, add_generation_prompt=True) == RENDERED["llama3"]
