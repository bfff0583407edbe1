"""The question alone, in an exported folder's chat template, gives the prompt of the training."""

import copy
import json
import subprocess
import sys

import pytest

from lab.export import model_folder, serving_prompt
from lab.export.serving_prompt import ServedPrompt
from lab.model import prompts
from tests.model.test_models import NO_SYSTEM

# As the named families write them (shortened: without tools and images).
LLAMA = (
    "{{- bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' "
    "+ message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}\n"
)
MISTRAL = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '\n\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}"
    "{% for message in turns %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + (system if loop.first else '') + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
)
QWEN = (
    "{%- if messages[0]['role'] == 'system' %}\n    {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}\n"
    "{%- else %}\n    {{- '<|im_start|>system\nYou are Qwen.<|im_end|>\n' }}\n{%- endif %}\n"
    "{%- for message in messages %}\n    {%- if message.role == 'user' or message.role == 'assistant' %}\n"
    "        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}\n    {%- endif %}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\n' }}\n{%- endif %}\n"
)
TEMPLATES = {"starter": None, "llama": LLAMA, "gemma": NO_SYSTEM, "mistral": MISTRAL, "qwen": QWEN}
HOSTILE = 'say "it\'s" \\ \\n {{ x }} {% if %} {# c #} %} }} ünï 🎉 \u2028 \x0b\r\n\tend'
SYSTEM = {"role": "system", "content": "Think, then answer."}
SHOTS = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "<think>\none more\n</think>\n2"}]
PREAMBLES = {
    "nothing": [],
    "system": [SYSTEM],
    "shots": SHOTS,
    "both": [SYSTEM, *SHOTS],
    "hostile": [{"role": "system", "content": HOSTILE}, *SHOTS],
}
QUESTION = {"role": "user", "content": "What is 3 * 4?"}


def with_template(tokenizer, template):
    made = copy.deepcopy(tokenizer)
    made.chat_template = template or made.chat_template
    made.bos_token = "<|endoftext|>"
    return made


@pytest.fixture(params=TEMPLATES)
def family(request, tokenizer):
    """A tokenizer behind the chat template of a family."""
    return with_template(tokenizer, TEMPLATES[request.param])


def trained_on(tokenizer, preamble, *turns, prefill=""):
    """The prompt that notebooks 01 and 03 make of it."""
    chat = [*preamble, *(turns or [QUESTION])]
    chat = chat if prompts.supports_system_role(tokenizer) else prompts.fold_system(chat)
    return [*chat, {"role": "assistant", "content": prefill}] if prefill else chat


def rendered(tokenizer, served, chat, **how):
    return tokenizer.apply_chat_template(
        chat, chat_template=serving_prompt.chat_template(tokenizer, served), tokenize=False, **how
    )


@pytest.mark.parametrize("prefill", ["", "<think>", "<think>\n", HOSTILE], ids=["none", "tag", "newline", "hostile"])
@pytest.mark.parametrize("preamble", PREAMBLES)
def test_the_question_alone_meets_the_training_prompt(family, preamble, prefill):
    served = ServedPrompt(PREAMBLES[preamble], prefill)
    for turns in ([QUESTION], [QUESTION, SHOTS[1], QUESTION]):
        chat = trained_on(family, served.preamble, *turns, prefill=prefill)
        question = served.question(chat)
        assert question == turns
        assert rendered(family, served, question, add_generation_prompt=True) == prompts.render(family, chat)


def test_a_question_in_the_project_s_own_prompt_meets_it_too(tokenizer):
    shots = [("2 + 2?", "two and two", "4")]
    chat = prompts.build_prompt("What is 3 * 4?", shots)
    served = ServedPrompt(prompts.build_prompt("", shots)[:-1])
    alone = rendered(tokenizer, served, served.question(chat), add_generation_prompt=True)
    assert alone == prompts.render(tokenizer, chat)


@pytest.mark.parametrize("preamble", PREAMBLES)
def test_a_chat_that_has_the_preamble_is_not_given_it_twice(family, preamble):
    served = ServedPrompt(PREAMBLES[preamble], "<think>")
    chat = trained_on(family, served.preamble)
    alone = rendered(family, served, [QUESTION], add_generation_prompt=True)
    assert rendered(family, served, chat, add_generation_prompt=True) == alone
    begun = trained_on(family, served.preamble, prefill="<think>")
    assert rendered(family, served, begun, continue_final_message=True) == prompts.render(family, begun)


@pytest.mark.parametrize("preamble", PREAMBLES)
def test_without_a_generation_prompt_only_the_preamble_is_added(family, preamble):
    served = ServedPrompt(PREAMBLES[preamble], "<think>")
    plain = family.apply_chat_template(trained_on(family, served.preamble), tokenize=False, add_generation_prompt=False)
    assert rendered(family, served, [QUESTION], add_generation_prompt=False) == plain


def test_a_system_message_of_the_chat_s_own_is_kept_and_the_preamble_left_out(tokenizer):
    chat = [{"role": "system", "content": "Answer in French."}, QUESTION]
    assert rendered(tokenizer, ServedPrompt([SYSTEM, *SHOTS]), chat) == tokenizer.apply_chat_template(
        chat, tokenize=False
    )


def test_a_template_that_refuses_system_messages_still_refuses_them(tokenizer):
    gemma = with_template(tokenizer, NO_SYSTEM)
    with pytest.raises(Exception, match="System role not supported"):
        rendered(gemma, ServedPrompt([SYSTEM]), [SYSTEM, QUESTION])


def test_contents_in_parts_are_given_the_system_prompt_too(tokenizer):
    """A pipeline passes on what a request says: a text, or a list of texts."""
    gemma = with_template(tokenizer, NO_SYSTEM)
    served, content = ServedPrompt([SYSTEM]), [{"type": "text", "text": "What is "}, {"type": "text", "text": "3 * 4?"}]
    assert rendered(gemma, served, [{"role": "user", "content": content}]) == rendered(gemma, served, [QUESTION])


@pytest.mark.parametrize(
    "ending", ["", "\n", "\r\n", "\n\n", "   ", "\n   ", "end\n  \n", "{# c #}\n", "{% if 1 -%}\n{%endif%}"]
)
@pytest.mark.parametrize(
    "start", ["", "\n", "  \n", "  {% if true %}x{% endif %}", "   y", "{%- if true %}x{% endif %}\n"]
)
def test_the_template_s_own_spaces_and_newlines_stay(tokenizer, start, ending):
    odd = with_template(tokenizer, start + tokenizer.chat_template + ending)
    expected = odd.apply_chat_template([SYSTEM, QUESTION], tokenize=False, add_generation_prompt=True)
    assert rendered(odd, ServedPrompt([SYSTEM]), [QUESTION], add_generation_prompt=True) == expected


@pytest.mark.parametrize("ending", ["", "\n", "{{ '' }}", "{{ '' }}\n", "{{ '' }}\r\n", "{{ '' }}\r", "{# c #}\n"])
def test_a_begun_answer_follows_the_generation_prompt_whatever_ends_the_template(tokenizer, ending):
    odd = with_template(tokenizer, tokenizer.chat_template + ending)
    expected = prompts.render(odd, [QUESTION, {"role": "assistant", "content": "<think>"}])
    assert rendered(odd, ServedPrompt([], "<think>"), [QUESTION], add_generation_prompt=True) == expected


def test_of_several_named_templates_the_default_is_taken(tokenizer):
    named = copy.deepcopy(tokenizer)
    named.chat_template = {"default": tokenizer.chat_template, "tool_use": "tools"}
    assert serving_prompt.chat_template(named, ServedPrompt([SYSTEM])) == serving_prompt.chat_template(
        tokenizer, ServedPrompt([SYSTEM])
    )


def test_a_begun_answer_is_put_as_the_model_s_template_puts_it(tokenizer):
    """Llama's trims it, Mistral's puts a space before it: so did the prompts of the training."""
    assert serving_prompt.rendered_prefill(with_template(tokenizer, LLAMA), "<think>\n") == "<think>"
    assert serving_prompt.rendered_prefill(with_template(tokenizer, MISTRAL), "<think>") == " <think>"


def test_a_template_that_begins_answers_otherwise_is_refused(tokenizer):
    odd = with_template(tokenizer, tokenizer.chat_template.replace("<|im_start|>assistant\n", "<|im_start|>thinker\n"))
    with pytest.raises(model_folder.ExportError, match="train without a prefill"):
        serving_prompt.chat_template(odd, ServedPrompt([], "<think>"))


def test_prompts_that_do_not_begin_with_the_preamble_are_told(tokenizer):
    for chat in ([QUESTION], [{"role": "system", "content": "another"}, QUESTION], []):
        for prefill in ("", "<think>"):
            with pytest.raises(model_folder.ExportError, match="01_prepare_data"):
                ServedPrompt([SYSTEM], prefill).question(chat)


def test_saved_and_loaded_in_a_fresh_process_they_render_the_same(tokenizer, tmp_path):
    served, families = ServedPrompt(PREAMBLES["hostile"], "<think>\n"), {}
    for kind in ("starter", "gemma", "mistral"):
        families[kind] = with_template(tokenizer, TEMPLATES[kind])
        made = copy.deepcopy(families[kind])
        made.chat_template = serving_prompt.chat_template(families[kind], served)
        made.response_template = serving_prompt.response_template(families[kind], served)
        made.save_pretrained(tmp_path / kind)
    program = (
        "import json, sys\nfrom transformers import AutoTokenizer\nfor place in sys.argv[2:]:\n"
        "    t = AutoTokenizer.from_pretrained(place)\n"
        "    text = t.apply_chat_template([json.loads(sys.argv[1])], tokenize=False, add_generation_prompt=True)\n"
        "    print(json.dumps([text, t.parse_response(' 12 ', prefix=text)['content'], 'lab' in sys.modules]))"
    )
    command = [sys.executable, "-P", "-c", program, json.dumps(QUESTION), *(str(tmp_path / kind) for kind in families)]
    done = subprocess.run(command, capture_output=True, text=True)
    for family, line in zip(families.values(), done.stdout.splitlines()[-3:], strict=True):
        text, content, ours = json.loads(line)
        assert text == prompts.render(family, trained_on(family, served.preamble, prefill="<think>\n"))
        assert content == serving_prompt.rendered_prefill(family, "<think>\n") + " 12 " and not ours


@pytest.mark.parametrize("prefill", ["", "<think>", HOSTILE], ids=["none", "tag", "hostile"])
@pytest.mark.parametrize(
    "text", ["  \nI </think> 12\n\n<answer>\n12\n</answer>\n ", "<think>a</think>b", "", "<think><think>"]
)
def test_an_answer_is_given_back_as_it_is(family, prefill, text):
    served = ServedPrompt([SYSTEM], prefill)
    prompt = rendered(family, served, [QUESTION], add_generation_prompt=True)
    spec = serving_prompt.response_template(family, served)
    expected = serving_prompt.rendered_prefill(family, prefill) + text
    assert family.parse_response(text, spec, prefix=prompt)["content"] == expected
    ended = family.parse_response(text + family.eos_token + family.pad_token, spec, prefix=prompt)
    assert ended == {"role": "assistant", "content": expected}


def test_special_tokens_are_left_out_as_decoding_leaves_them_out(tokenizer):
    spec, text = (
        serving_prompt.response_template(tokenizer, ServedPrompt([])),
        "12<|endoftext|> and<|im_start|> more<|im_end|>",
    )
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "12 and more"
    assert tokenizer.parse_response(text, spec, prefix="")["content"] == "12 and more"


def test_a_question_that_holds_the_begun_part_is_not_given_back(tokenizer):
    served = ServedPrompt([], "<think>")
    prompt = rendered(tokenizer, served, [{"role": "user", "content": "what is <think>?"}], add_generation_prompt=True)
    assert (
        tokenizer.parse_response("12", serving_prompt.response_template(tokenizer, served), prefix=prompt)["content"]
        == "<think>12"
    )
    lost = tokenizer.parse_response(
        "12", serving_prompt.response_template(tokenizer, served), prefix="a prompt without it"
    )
    assert lost["content"] == "12"


class WithConfig:
    def __init__(self, **values):
        from transformers import GenerationConfig

        self.generation_config = GenerationConfig(**values)


def test_sampling_is_plain_whatever_the_base_s_config_says(tokenizer, tmp_path, caplog, recwarn):
    from transformers import GenerationConfig

    base = WithConfig(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.1, do_sample=True, eos_token_id=[0, 7])
    served = ServedPrompt([], stop=("</answer>", '"\n'), temperature=0.9, max_new_tokens=40)
    GenerationConfig(**serving_prompt.generation_config(base, tokenizer, served)).save_pretrained(tmp_path)
    found = GenerationConfig.from_pretrained(tmp_path)
    assert (found.do_sample, found.temperature, found.top_p, found.top_k, found.repetition_penalty) == (
        True,
        0.9,
        1.0,
        0,
        1.0,
    )
    assert found.eos_token_id == [0, 2, 7] and found.pad_token_id == 0 and found.max_new_tokens == 40
    assert found.stop_strings == ["</answer>", '"\n']
    assert not caplog.records and not [w for w in recwarn if "eneration" in str(w.message)]


@pytest.mark.parametrize(("ends", "expected"), [(None, 2), (2, 2), ([2], 2), ([5, 2], [2, 5])])
def test_every_token_that_ends_a_turn_is_there_once(tokenizer, ends, expected):
    found = serving_prompt.generation_config(WithConfig(eos_token_id=ends), tokenizer, ServedPrompt([]))
    assert found["eos_token_id"] == expected and "stop_strings" not in found


RUN = {
    "requested": {"temperature": 0.9, "max_completion_length": 64, "generation_kwargs": {"stop": "</answer>"}},
    "model": {"prefill": "<think>"},
    "data": {"preamble": [SYSTEM]},
}


def test_prompt_and_sampling_are_read_from_the_run_and_the_stop_can_be_another():
    assert serving_prompt.served_prompt(RUN) == ServedPrompt([SYSTEM], "<think>", ("</answer>",), 0.9, 64)
    assert (
        serving_prompt.served_prompt(RUN, "END").stop == ("END",) and serving_prompt.served_prompt(RUN, []).stop == ()
    )


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({"stop_strings": ["a", "b"]}, ("a", "b")),
        ({"stop": ["a", "b"]}, ("a", "b")),
        ({"stop": "a"}, ("a",)),
        (None, ()),
    ],
)
def test_stops_are_found_in_both_spellings_of_a_run(kwargs, expected):
    run = {**RUN, "requested": {**RUN["requested"], "generation_kwargs": kwargs}}
    assert serving_prompt.served_prompt(run).stop == expected
