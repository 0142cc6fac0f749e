"""Chat templates of an output: by name, the most common one of the inputs, or a text in Jinja.

A tokenizer's files have a template in ``chat_template.jinja``, which newer readers look for first, and in
``tokenizer_config.json``. Templates by name are those of public formats, under the names that mergekit has for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from consilience.catalogue import suggestion
from consilience.checkpoints.folder import companion_files, read_object
from consilience.errors import OptionError
from consilience.files.opening import read_text

TEMPLATE_FILE = "chat_template.jinja"
TOKENIZER_CONFIG = "tokenizer_config.json"

_CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{{ '\\n' }}{% endif %}"
)
_LLAMA3 = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>{{ '\\n\\n' }}{{ message['content'] | trim }}<|eot_id|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>{{ '\\n\\n' }}{% endif %}"
)
_MISTRAL = (
    "{% set system = messages[0]['content'] if messages[0]['role'] == 'system' else none %}"
    "{% set turns = messages if system is none else messages[1:] %}"
    "{{ bos_token }}"
    "{% for message in turns %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) or message['role'] not in ('user', 'assistant') %}"
    "{{ raise_exception('user and assistant must alternate, after a system message at most') }}"
    "{% endif %}"
    "{% if message['role'] == 'user' %}"
    "{{ ' [INST] ' }}{% if loop.first and system is not none %}{{ system }}{{ '\\n\\n' }}{% endif %}"
    "{{ message['content'] }}{{ ' [/INST]' }}"
    "{% else %}"
    "{{ ' ' }}{{ message['content'] }}{{ eos_token }}"
    "{% endif %}"
    "{% endfor %}"
)
_ALPACA = (
    "{% set headings = {'user': 'Instruction', 'user_context': 'Input', 'assistant': 'Response'} %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] | trim }}"
    "{% else %}{{ '### ' }}{{ headings[message['role']] }}{{ ':\\n' }}{{ message['content'] | trim }}"
    "{% endif %}"
    "{% if not loop.last %}{{ '\\n\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\n\\n### Response:\\n' }}{% endif %}"
)
_EXAONE = (
    "{% if messages[0]['role'] != 'system' %}{{ '[|system|][|endofturn|]\\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '[|' }}{{ message['role'] }}{{ '|]' }}{{ message['content'] }}"
    "{% if message['role'] != 'user' %}{{ '[|endofturn|]' }}{% endif %}{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '[|assistant|]' }}{% endif %}"
)
TEMPLATES: Mapping[str, str] = {
    "alpaca": _ALPACA, "chatml": _CHATML, "exaone": _EXAONE, "llama3": _LLAMA3, "mistral": _MISTRAL,
}  # fmt: skip
"""Templates by name: Jinja, as transformers renders it."""
AUTO = "auto"
"""Name of the most common template of the inputs."""


def as_chat_template(value: str | None) -> str | None:
    """Return a template in Jinja by its name; a text with braces and "auto" stay as they are.

    Raises OptionError for a name that there is not.

    Examples
    --------
    >>> as_chat_template("chatml")[:25]
    '{% for message in message'
    """
    if value is None or value == AUTO or "{" in value:
        return value
    if value not in TEMPLATES:
        there_are = ", ".join((*TEMPLATES, AUTO))
        text = f"there is none named {value!r:.40}{suggestion(value, TEMPLATES)}; there are {there_are}"
        raise OptionError("chat_template", text, "choose one, or give the template itself")
    return TEMPLATES[value]


def most_common_template(folders: Sequence[Path]) -> str | None:
    """Return the most common template of tokenizers in folders, the first of equals; None where there is none."""
    found = [template.strip() for folder in folders if (template := template_in(folder)) is not None]
    return Counter(found).most_common(1)[0][0] if found else None


def template_in(folder: Path) -> str | None:
    """Return the chat template of the tokenizer in a folder, of several the default one; None where there is none."""
    files = {path.name: path for path in companion_files(folder)[0]}
    if TEMPLATE_FILE in files:
        return read_text(files[TEMPLATE_FILE])
    stated = read_object(files[TOKENIZER_CONFIG]).get("chat_template") if TOKENIZER_CONFIG in files else None
    if isinstance(stated, list):  # of {name, template}
        named = [one for one in stated if isinstance(one, Mapping) and one.get("name") == "default"]
        stated = named[-1].get("template") if named else None
    return stated if isinstance(stated, str) else None
