"""Serving: a question alone, asked of the exported folder, meets what the policy was trained behind."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from tests.model.test_models import NO_SYSTEM

from lab.export import merge, merge_proof, ollama, serving, serving_prompt
from lab.export.serving_prompt import ServedPrompt
from lab.files import ROOT, STARTER_POLICY
from lab.model import prompts, sampling

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


def needed(reason):
    """Skips, but fails in CI, which should have it."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


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


def served(tokenizer, manner, chat, **how):
    return tokenizer.apply_chat_template(
        chat, chat_template=serving_prompt.template_for(tokenizer, manner), tokenize=False, **how
    )


# --------------------------------------------------------------------------- the chat template


@pytest.mark.parametrize("prefill", ["", "<think>", "<think>\n", HOSTILE], ids=["none", "tag", "newline", "hostile"])
@pytest.mark.parametrize("preamble", PREAMBLES)
def test_the_question_alone_meets_the_training_prompt(family, preamble, prefill):
    manner = ServedPrompt(PREAMBLES[preamble], prefill)
    for turns in ([QUESTION], [QUESTION, SHOTS[1], QUESTION]):
        chat = trained_on(family, manner.preamble, *turns, prefill=prefill)
        question = manner.question(chat)
        assert question == turns
        assert serving_prompt.same_prompt(family, serving_prompt.template_for(family, manner), chat, question)


def test_a_question_in_the_project_s_own_prompt_meets_it_too(tokenizer):
    shots = [("2 + 2?", "two and two", "4")]
    chat = prompts.build_prompt("What is 3 * 4?", shots)
    manner = ServedPrompt(prompts.build_prompt("", shots)[:-1])
    assert serving_prompt.same_prompt(
        tokenizer, serving_prompt.template_for(tokenizer, manner), chat, manner.question(chat)
    )


@pytest.mark.parametrize("preamble", PREAMBLES)
def test_a_chat_that_has_the_preamble_is_not_given_it_twice(family, preamble):
    manner = ServedPrompt(PREAMBLES[preamble], "<think>")
    chat = trained_on(family, manner.preamble)
    alone = served(family, manner, [QUESTION], add_generation_prompt=True)
    assert served(family, manner, chat, add_generation_prompt=True) == alone
    begun = trained_on(family, manner.preamble, prefill="<think>")
    assert served(family, manner, begun, continue_final_message=True) == prompts.render(family, begun)


@pytest.mark.parametrize("preamble", PREAMBLES)
def test_without_a_generation_prompt_only_the_preamble_is_added(family, preamble):
    manner = ServedPrompt(PREAMBLES[preamble], "<think>")
    plain = family.apply_chat_template(trained_on(family, manner.preamble), tokenize=False, add_generation_prompt=False)
    assert served(family, manner, [QUESTION], add_generation_prompt=False) == plain


def test_a_system_message_of_the_chat_s_own_is_kept_and_the_preamble_left_out(tokenizer):
    chat = [{"role": "system", "content": "Answer in French."}, QUESTION]
    assert served(tokenizer, ServedPrompt([SYSTEM, *SHOTS]), chat) == tokenizer.apply_chat_template(
        chat, tokenize=False
    )


def test_a_template_that_refuses_system_messages_still_refuses_them(tokenizer):
    gemma = with_template(tokenizer, NO_SYSTEM)
    with pytest.raises(Exception, match="System role not supported"):
        served(gemma, ServedPrompt([SYSTEM]), [SYSTEM, QUESTION])


def test_contents_in_parts_are_given_the_system_prompt_too(tokenizer):
    """A pipeline passes on what a request says: a text, or a list of texts."""
    gemma = with_template(tokenizer, NO_SYSTEM)
    manner, content = ServedPrompt([SYSTEM]), [{"type": "text", "text": "What is "}, {"type": "text", "text": "3 * 4?"}]
    assert served(gemma, manner, [{"role": "user", "content": content}]) == served(gemma, manner, [QUESTION])


@pytest.mark.parametrize(
    "ending", ["", "\n", "\r\n", "\n\n", "   ", "\n   ", "end\n  \n", "{# c #}\n", "{% if 1 -%}\n{%endif%}"]
)
@pytest.mark.parametrize(
    "start", ["", "\n", "  \n", "  {% if true %}x{% endif %}", "   y", "{%- if true %}x{% endif %}\n"]
)
def test_the_template_s_own_spaces_and_newlines_stay(tokenizer, start, ending):
    odd = with_template(tokenizer, start + tokenizer.chat_template + ending)
    expected = odd.apply_chat_template([SYSTEM, QUESTION], tokenize=False, add_generation_prompt=True)
    assert served(odd, ServedPrompt([SYSTEM]), [QUESTION], add_generation_prompt=True) == expected


@pytest.mark.parametrize("ending", ["", "\n", "{{ '' }}", "{{ '' }}\n", "{{ '' }}\r\n", "{{ '' }}\r", "{# c #}\n"])
def test_a_begun_answer_follows_the_generation_prompt_whatever_ends_the_template(tokenizer, ending):
    odd = with_template(tokenizer, tokenizer.chat_template + ending)
    expected = prompts.render(odd, [QUESTION, {"role": "assistant", "content": "<think>"}])
    assert served(odd, ServedPrompt([], "<think>"), [QUESTION], add_generation_prompt=True) == expected


def test_of_several_named_templates_the_default_is_taken(tokenizer):
    named = copy.deepcopy(tokenizer)
    named.chat_template = {"default": tokenizer.chat_template, "tool_use": "tools"}
    assert serving_prompt.template_for(named, ServedPrompt([SYSTEM])) == serving_prompt.template_for(
        tokenizer, ServedPrompt([SYSTEM])
    )


def test_a_begun_answer_is_put_as_the_model_s_template_puts_it(tokenizer):
    """Llama's trims it, Mistral's puts a space before it: so did the prompts of the training."""
    assert serving_prompt.begun(with_template(tokenizer, LLAMA), "<think>\n") == "<think>"
    assert serving_prompt.begun(with_template(tokenizer, MISTRAL), "<think>") == " <think>"


def test_a_template_that_begins_answers_otherwise_is_refused(tokenizer):
    odd = with_template(tokenizer, tokenizer.chat_template.replace("<|im_start|>assistant\n", "<|im_start|>thinker\n"))
    with pytest.raises(serving_prompt.ServingError, match="train without a prefill"):
        serving_prompt.template_for(odd, ServedPrompt([], "<think>"))


def test_a_lone_surrogate_can_be_written_and_comes_back(tokenizer, tmp_path):
    manner = ServedPrompt([{"role": "system", "content": "broken \ud83d, whole 🎉"}])
    (tmp_path / "t.jinja").write_text(serving_prompt.template_for(tokenizer, manner), encoding="utf-8")
    assert "broken \ud83d, whole 🎉" in served(tokenizer, manner, [QUESTION])


def test_prompts_that_do_not_begin_with_the_preamble_are_told(tokenizer):
    for chat in ([QUESTION], [{"role": "system", "content": "another"}, QUESTION], []):
        for prefill in ("", "<think>"):
            with pytest.raises(serving_prompt.ServingError, match="01_prepare_data"):
                ServedPrompt([SYSTEM], prefill).question(chat)


@pytest.mark.parametrize("kind", ["starter", "gemma", "mistral"])
def test_saved_and_loaded_in_a_fresh_process_it_renders_the_same(kind, tokenizer, tmp_path):
    family = with_template(tokenizer, TEMPLATES[kind])
    manner = ServedPrompt(PREAMBLES["hostile"], "<think>\n")
    made = copy.deepcopy(family)
    made.chat_template, made.response_template = (
        serving_prompt.template_for(family, manner),
        serving_prompt.response_template(family, manner),
    )
    made.save_pretrained(tmp_path)
    program = (
        "import json, sys\nfrom transformers import AutoTokenizer\nt = AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "text = t.apply_chat_template([json.loads(sys.argv[2])], tokenize=False, add_generation_prompt=True)\n"
        "print(json.dumps([text, t.parse_response(' 12 ', prefix=text)['content'], 'lab' in sys.modules]))"
    )
    command = [sys.executable, "-P", "-c", program, str(tmp_path), json.dumps(QUESTION)]
    done = subprocess.run(command, capture_output=True, text=True)
    text, content, ours = json.loads(done.stdout.splitlines()[-1])
    assert text == prompts.render(family, trained_on(family, manner.preamble, prefill="<think>\n"))
    assert content == serving_prompt.begun(family, "<think>\n") + " 12 " and not ours


# --------------------------------------------------------------------------- the response template


@pytest.mark.parametrize("prefill", ["", "<think>", HOSTILE], ids=["none", "tag", "hostile"])
@pytest.mark.parametrize(
    "text", ["  \nI </think> 12\n\n<answer>\n12\n</answer>\n ", "<think>a</think>b", "", "<think><think>"]
)
def test_an_answer_is_given_back_as_it_is(family, prefill, text):
    manner = ServedPrompt([SYSTEM], prefill)
    prompt = served(family, manner, [QUESTION], add_generation_prompt=True)
    spec = serving_prompt.response_template(family, manner)
    expected = serving_prompt.begun(family, prefill) + text
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
    manner = ServedPrompt([], "<think>")
    prompt = served(tokenizer, manner, [{"role": "user", "content": "what is <think>?"}], add_generation_prompt=True)
    assert (
        tokenizer.parse_response("12", serving_prompt.response_template(tokenizer, manner), prefix=prompt)["content"]
        == "<think>12"
    )
    lost = tokenizer.parse_response(
        "12", serving_prompt.response_template(tokenizer, manner), prefix="a prompt without it"
    )
    assert lost["content"] == "12"


# --------------------------------------------------------------------------- the generation config


class WithConfig:
    def __init__(self, **values):
        from transformers import GenerationConfig

        self.generation_config = GenerationConfig(**values)


def test_sampling_is_plain_whatever_the_base_s_config_says(tokenizer, tmp_path, caplog, recwarn):
    from transformers import GenerationConfig

    base = WithConfig(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.1, do_sample=True, eos_token_id=[0, 7])
    manner = ServedPrompt([], stop=("</answer>", '"\n'), temperature=0.9, max_new_tokens=40)
    GenerationConfig(**serving_prompt.generation_config(base, tokenizer, manner)).save_pretrained(tmp_path)
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


def test_a_temperature_of_zero_is_greedy(tokenizer, tmp_path):
    from transformers import GenerationConfig

    found = GenerationConfig(
        **serving_prompt.generation_config(WithConfig(), tokenizer, ServedPrompt([], temperature=0))
    )
    found.save_pretrained(tmp_path)  # raises where it contradicts itself
    assert found.do_sample is False


def test_stops_are_found_in_both_spellings_of_a_run():
    for kwargs in ({"stop_strings": ["a", "b"]}, {"stop": ["a", "b"]}):
        assert serving_prompt.stops_of({"generation_kwargs": kwargs}) == ["a", "b"]
    assert serving_prompt.stops_of({"generation_kwargs": {"stop": "a"}}) == ["a"]
    assert serving_prompt.stops_of({"generation_kwargs": None}) == serving_prompt.stops_of({}) == []


# --------------------------------------------------------------------------- the server


@pytest.fixture(scope="module")
def model():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(STARTER_POLICY, dtype="auto").eval()


@pytest.fixture(scope="module")
def manner():
    return ServedPrompt(prompts.build_prompt("", [])[:-1], prefill="<think>\n", max_new_tokens=48)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model, tokenizer, manner):
    place = tmp_path_factory.mktemp("served") / "model"
    shutil.copytree(STARTER_POLICY, place)
    merge.finish(place, model, tokenizer, manner)
    return place


@pytest.fixture(scope="module")
def chats(manner):
    rows = [json.loads(line) for line in (ROOT / "data/word_problems.jsonl").read_text().splitlines()[:3]]
    begun = {"role": "assistant", "content": manner.prefill}
    return [[*manner.preamble, {"role": "user", "content": row["question"]}, begun] for row in rows]


def can_serve():
    missing = [name for name in ("fastapi", "uvicorn", "openai") if importlib.util.find_spec(name) is None]
    if missing:
        needed(f"`transformers serve` needs {', '.join(missing)}: `pip install transformers[serving]`")


@pytest.fixture(scope="module")
def url(folder):
    can_serve()
    with serving.server(folder) as address:
        yield address


def alive(folder):
    """Processes of ours that serve this folder."""
    return [child for child in psutil.Process().children(recursive=True) if str(folder) in child.cmdline()]


def asked(url, folder, manner, chat, **how):
    return serving.ask(url, str(folder), manner.question(chat), max_tokens=manner.max_new_tokens, **how)


REPORT = {"preamble": [{"role": "system", "content": "S"}]}
RUN = {
    "requested": {"temperature": 0.9, "max_completion_length": 64, "generation_kwargs": {"stop": "</answer>"}},
    "model": {"prefill": "<think>"},
    "data": {},
}


def test_how_a_run_was_asked_is_read_from_it_and_the_stop_can_be_another():
    assert serving_prompt.served_prompt(RUN, REPORT) == ServedPrompt(
        REPORT["preamble"], "<think>", ("</answer>",), 0.9, 64
    )
    assert (
        serving_prompt.served_prompt(RUN, REPORT, "END").stop == ("END",)
        and serving_prompt.served_prompt(RUN, REPORT, []).stop == ()
    )
    kept = {**RUN, "data": {"preamble": []}}
    assert serving_prompt.served_prompt(kept, REPORT).preamble == [], (
        "what the run was trained behind, whatever the data set is now"
    )
    with pytest.raises(serving_prompt.ServingError, match="run notebook 01_prepare_data again"):
        serving_prompt.served_prompt(RUN, {})


def test_served_answers_are_those_that_were_evaluated(url, folder, model, tokenizer, manner, chats):
    expected = merge_proof.greedy_answers(model, tokenizer, chats, manner)
    assert [asked(url, folder, manner, chat) for chat in chats] == expected
    assert all(answer.startswith("<think>\n") for answer in expected)


def test_streamed_answers_are_the_same(url, folder, model, tokenizer, manner, chats):
    from openai import DefaultHttpxClient, OpenAI

    client = OpenAI(base_url=url, api_key="none", http_client=DefaultHttpxClient(trust_env=False))
    for chat, expected in zip(chats, merge_proof.greedy_answers(model, tokenizer, chats, manner)):
        parts = client.chat.completions.create(
            model=str(folder),
            messages=manner.question(chat),
            temperature=0,
            max_tokens=manner.max_new_tokens,
            stream=True,
        )
        deltas = [choice.delta.content for part in parts for choice in part.choices]
        assert "".join(filter(None, deltas)) == expected and len([*filter(None, deltas)]) > 3


def test_temperature_one_differs_between_calls_and_zero_does_not(url, folder, manner, chats):
    assert len({asked(url, folder, manner, chats[0]) for _ in range(4)}) == 1
    assert len({asked(url, folder, manner, chats[0], temperature=1.0) for _ in range(12)}) > 1


def test_a_stop_ends_the_answer(url, folder, model, tokenizer, manner, chats):
    whole = merge_proof.greedy_answers(model, tokenizer, chats[:1], manner)[0]
    word = re.findall(r"\w+", whole.removeprefix("<think>\n"))[2]
    found = asked(url, folder, manner, chats[0], stop=[word])
    assert whole.startswith(found) and found.endswith(word) and len(found) < len(whole)


def test_two_requests_at_once_get_their_own_answers(url, folder, model, tokenizer, manner, chats):
    expected = merge_proof.greedy_answers(model, tokenizer, chats, manner)
    with ThreadPoolExecutor(3) as pool:
        assert [*pool.map(lambda chat: asked(url, folder, manner, chat), chats)] == expected


def test_a_proxy_of_the_environment_does_not_stand_between(url, folder, manner, chats, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert asked(url, folder, manner, chats[0]).startswith("<think>")


def test_a_folder_without_weights_says_so_and_leaves_no_process(folder, tmp_path):
    can_serve()
    shutil.copytree(folder, tmp_path / "empty", ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(
        serving_prompt.ServingError, match=r"ended. Its last words:[\s\S]*no file named model.safetensors"
    ):
        with serving.server(tmp_path / "empty"):
            pytest.fail("it must not come up")
    assert not alive(tmp_path / "empty")


def test_a_server_that_is_too_slow_is_ended(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "slow")
    with pytest.raises(serving_prompt.ServingError, match="did not answer in 0.5 s"):
        with serving.server(tmp_path / "slow", patience=0.5):
            pytest.fail("it must not come up")
    assert not alive(tmp_path / "slow")


def test_the_process_ends_with_the_block_even_when_the_block_fails(folder, tmp_path):
    can_serve()
    shutil.copytree(folder, tmp_path / "short")
    with pytest.raises(ZeroDivisionError), serving.server(tmp_path / "short"):
        assert alive(tmp_path / "short")
        _ = 1 / 0
    assert not alive(tmp_path / "short")


def test_a_plain_pipeline_finds_begun_answer_and_stop_in_the_folder(model, tokenizer, tmp_path, chats):
    shutil.copytree(STARTER_POLICY, tmp_path / "m")
    manner = ServedPrompt(prompts.build_prompt("", [])[:-1], prefill="<think>\n", stop=("</think>",), max_new_tokens=48)
    merge.finish(tmp_path / "m", model, tokenizer, manner)
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype="auto").eval()
    expected = merge_proof.greedy_answers(loaded, tokenizer, chats, manner)
    found = merge_proof.answer_in_fresh_process(tmp_path / "m", [manner.question(chat) for chat in chats], 48)
    assert found["answers"] == expected and any(text.endswith("</think>") for text in expected)


# --------------------------------------------------------------------------- adapters


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """Two adapters that differ from the base and from each other."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    found = {}
    for seed, name in enumerate(("early", "late")):
        base = AutoModelForCausalLM.from_pretrained(STARTER_POLICY, dtype=torch.float32)
        made = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
        torch.manual_seed(seed)
        for weight_name, weight in made.named_parameters():
            if "lora_B" in weight_name:
                torch.nn.init.normal_(weight, std=2)
        found[name] = tmp_path_factory.mktemp(name)
        made.save_pretrained(found[name])
    return found


def float_base(**config):
    import torch
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(STARTER_POLICY, dtype=torch.float32)
    base.generation_config.update(**config)
    return base


def test_adapters_in_one_batch_answer_as_each_alone(adapters, tokenizer, chats):
    from peft import PeftModel

    chats = [chat[:-1] for chat in chats]
    swapped = serving.Adapters(float_base(repetition_penalty=1.5), tokenizer, adapters)
    requests = [(name, chat) for chat in chats for name in ("late", "base", "early")]
    found = swapped.answer(requests, max_new_tokens=24)
    alone = {"base": float_base()}
    alone |= {name: PeftModel.from_pretrained(float_base(), folder) for name, folder in adapters.items()}
    for (name, chat), answer in zip(requests, found):
        [(expected,)] = sampling.sample(alone[name], tokenizer, [chat], temperature=0, max_new_tokens=24)
        assert answer == expected.text, name
    assert len(set(found[:3])) == 3


def test_a_stop_ends_each_answer_of_the_batch(adapters, tokenizer, chats):
    swapped = serving.Adapters(float_base(), tokenizer, adapters)
    [whole] = swapped.answer([("base", chats[0][:-1])], max_new_tokens=24)
    stop = whole.split()[1]
    found = swapped.answer([("base", chats[0][:-1]), ("late", chats[0][:-1])], max_new_tokens=24, stop=[stop])
    assert found[0] == whole[: whole.index(stop) + len(stop)]


def test_an_unknown_adapter_is_told_with_the_names_there_are(adapters, tokenizer, chats):
    swapped = serving.Adapters(float_base(), tokenizer, adapters)
    with pytest.raises(serving_prompt.ServingError, match="no adapter 'lat'; there are: base, early, late"):
        swapped.answer([("lat", chats[0])], max_new_tokens=2)


def test_base_is_no_name_for_an_adapter(adapters, tokenizer):
    for wrong in ({}, {"base": adapters["late"]}):
        with pytest.raises(serving_prompt.ServingError, match="at least one adapter"):
            serving.Adapters(float_base(), tokenizer, wrong)


@pytest.mark.parametrize(
    ("rank", "most"), [(1, 8), (8, 8), (16, 16), (17, 32), (64, 64), (129, 256), (512, 512), (600, 600)]
)
def test_vllm_is_given_the_next_rank_that_it_knows(rank, most, tmp_path):
    assert f"--max-lora-rank {most} " in serving.vllm_command("a/b", {"x": tmp_path}, rank)


def test_vllm_takes_template_and_sampling_from_the_adapter_s_folder(tmp_path):
    import shlex

    place = tmp_path / "my adapter"
    words = shlex.split(serving.vllm_command("a/b", {"new": place, "old": ROOT / "outputs/old"}, 16))
    assert words[words.index("--lora-modules") + 1 :][:2] == [f"new={place}", "old=outputs/old"]
    assert words[words.index("--chat-template") + 1] == f"{place}/chat_template.jinja"
    assert words[words.index("--generation-config") + 1] == str(place)


# --------------------------------------------------------------------------- Ollama


def go(template, messages):
    """A Go template as Ollama renders it: `range`, `if`, `else if`, `else`, `end`, strings, fields, one kind of variable."""
    system = "\n\n".join(message["content"] for message in messages if message["role"] == "system")
    tokens = re.split(r"(\{\{.*?\}\})", template)
    variables = {}

    def value(text, dot):
        if text.startswith('"'):
            return json.loads(text)
        return {".System": system, "$.System": system, ".Messages": messages}.get(text, variables.get(text)) or (
            dot or {}
        ).get(text.removeprefix(".").lower(), "")

    def true(test, dot):
        words = test.split()
        return value(words[1], dot) == value(words[2], dot) if words[0] == "eq" else bool(value(words[0], dot))

    def run(i, dot, live):
        """Writes from token i until the block's end or its `else`; returns the text and where it stopped."""
        out = ""
        while i < len(tokens):
            token = tokens[i]
            action = token[2:-2].strip() if token.startswith("{{") else None
            if action is None:
                out += token if live else ""
            elif action == "end" or action.startswith("else"):
                return out, i
            elif action.startswith("range"):
                for one in messages if live else []:
                    out += run(i + 1, one, True)[0]
                i = run(i + 1, None, False)[1]
            elif action.startswith("if "):
                done, test = False, action[3:]
                while True:
                    chosen = live and not done and true(test, dot)
                    text, i = run(i + 1, dot, chosen)
                    out, done = out + text, done or chosen
                    action = tokens[i][2:-2].strip()
                    if action == "end":
                        break
                    test = action.removeprefix("else").strip().removeprefix("if ").strip() or '"always"'
            elif "=" in action:
                name, _, word = action.split()
                variables.update({name: word == "true"} if live else {})
            else:
                out += str(value(action, dot)) if live else ""
            i += 1
        return out, i

    return run(0, None, True)[0]


def parsed(text):
    """A Modelfile's commands as Ollama's parser reads them: three quotes around a text, and no escapes."""
    found = re.findall(r'^([A-Z]+) (?:((?:[a-z_]+ )?)"""(.*?)"""|(.*?))$', text, re.DOTALL | re.MULTILINE)
    return [(command, name.strip(), quoted or plain) for command, name, quoted, plain in found]


def asked_of_ollama(text, chat):
    """The prompt that Ollama makes of a chat: the Modelfile's messages first, its system text unless the chat has one."""
    commands = parsed(text)
    [template] = [value for command, _, value in commands if command == "TEMPLATE"]
    system = [{"role": "system", "content": value} for command, _, value in commands if command == "SYSTEM"]
    shots = [{"role": role, "content": value} for command, role, value in commands if command == "MESSAGE"]
    return go(template, [*(system if chat[0]["role"] != "system" else []), *shots, *chat])


@pytest.mark.parametrize("preamble", ["nothing", "system", "shots", "both"])
@pytest.mark.parametrize("prefill", ["", "<think>\n{"])
def test_ollama_makes_the_training_prompt_of_a_question(family, preamble, prefill):
    manner = ServedPrompt(PREAMBLES[preamble], prefill)
    text = ollama.modelfile("m.gguf", family, manner)
    for turns in ([QUESTION], [QUESTION, SHOTS[1], QUESTION]):
        expected = prompts.render(family, trained_on(family, manner.preamble, *turns, prefill=prefill))
        assert asked_of_ollama(text, turns) == expected


def test_in_ollama_a_chat_s_own_system_message_takes_the_place_of_ours(family):
    chat = [{"role": "system", "content": "Answer in French."}, QUESTION]
    text = ollama.modelfile("m.gguf", family, ServedPrompt([SYSTEM]))
    assert asked_of_ollama(text, chat) == prompts.render(family, trained_on(family, chat[:1]))


def test_braces_of_a_chat_template_stay_braces_in_go(tokenizer):
    odd = with_template(
        tokenizer,
        (
            "{% for m in messages %}{{ '{{ ' + m['role'] + ' }} {{{' + m['content'] + '}}}\n{' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '{{ assistant }} {{{' }}{% endif %}"
        ),
    )
    text = ollama.modelfile("m.gguf", odd, ServedPrompt([SYSTEM]))
    assert asked_of_ollama(text, [QUESTION]) == prompts.render(odd, [SYSTEM, QUESTION])


def test_a_token_that_the_tokenizer_sets_by_itself_is_not_in_the_template(tokenizer):
    """The GGUF begins every text with it too: with the template's it would stand there twice."""
    from tokenizers.processors import TemplateProcessing

    llama = with_template(tokenizer, LLAMA)
    assert ollama.ollama_template(llama).count(llama.bos_token) == 2  # with and without a system message
    llama.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{llama.bos_token} $A", special_tokens=[(llama.bos_token, llama.bos_token_id)]
    )
    assert llama.bos_token not in ollama.ollama_template(llama)


@pytest.mark.parametrize(
    "odd",
    [
        "{% for m in messages %}{{ m['content'] }}{% if loop.last %}!{% endif %}{% endfor %}",
        "{% for m in messages %}{{ loop.index }}{{ m['role'] }}:{{ m['content'] }}\n{% endfor %}",
        "{% for m in messages %}{{ m['role'] }}:{{ m['content'] | upper }}\n{% endfor %}",
        "{{ messages[-1]['content'] }}",
        "",
        "always the same",
        "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}\n{% endfor %}"
        "{% if messages[-1]['role'] != 'user' %}{{ raise_exception('ask something') }}{% endif %}",
    ],
)
def test_a_template_that_go_cannot_write_is_refused(tokenizer, odd):
    strange = copy.deepcopy(tokenizer)
    strange.chat_template = odd
    with pytest.raises(serving_prompt.ServingError, match="by hand"):
        ollama.ollama_template(strange)


@pytest.mark.parametrize("text", ['say """ ok', "joined \u200d emoji", "no\u00a0break", "bell \x07"])
def test_what_a_modelfile_cannot_say_is_refused(tokenizer, text):
    """Ollama's parser ends a text at three quotes, and drops characters that do not print."""
    for manner in (
        ServedPrompt([{"role": "system", "content": text}]),
        ServedPrompt([], text),
        ServedPrompt([], stop=(text,)),
    ):
        with pytest.raises(serving_prompt.ServingError, match="A Modelfile cannot say"):
            ollama.modelfile("m.gguf", tokenizer, manner)


def test_settings_stops_and_examples_are_in_the_modelfile(tokenizer, tmp_path):
    manner = ServedPrompt(
        [SYSTEM, *SHOTS], stop=("</answer>", 'a "quote" \\ and\na line'), temperature=0.7, max_new_tokens=1_500_000
    )
    (tmp_path / "m.gguf").touch()
    commands = parsed(ollama.write_modelfile(tmp_path, tmp_path / "m.gguf", tokenizer, manner).read_text())
    assert commands[0] == ("FROM", "", "./m.gguf")
    assert ("SYSTEM", "", SYSTEM["content"]) in commands
    assert [c for c in commands if c[0] == "MESSAGE"] == [("MESSAGE", shot["role"], shot["content"]) for shot in SHOTS]
    assert [c[2] for c in commands if c[1] == "stop"] == ["<|im_end|>", "</answer>", 'a "quote" \\ and\na line']
    plain = [c[2] for c in commands if c[0] == "PARAMETER" and not c[1]]
    assert plain == ["temperature 0.7", "top_p 1.0", "top_k 0", "repeat_penalty 1.0", "num_predict 1500000"]


def test_a_tokenizer_without_an_end_token_gives_no_stop(tokenizer):
    plain = copy.deepcopy(tokenizer)
    plain.eos_token = None
    assert "PARAMETER stop" not in ollama.modelfile("m.gguf", plain, ServedPrompt([]))
