"""Rewards edited while they train: what an edit changes, what refuses it, and what goes on afterwards."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict, deque
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

import rewards
from lab.files import ROOT, STARTER_POLICY, write_json, write_parquet
from lab.train import chosen_rewards
from lab.train.live_rewards import LiveRewards, kept_sources, load_checked, recorded_batch
from tests.warm_processes import warm_python

OWN = '''"""Rewards of my own."""
import re

from rewards import correctness_reward, gate, length_reward, rename, reward

WORD = re.compile(r"[a-z]+")
LIMIT = 5


def words(text):
    """How many words there are."""
    return len(WORD.findall(text))


@reward
def x_reward(completion: str) -> float:
    """Whether it is short."""
    return float(len(completion) < LIMIT)


@reward
def y_reward(completion: str) -> float:
    return min(1.0, words(completion) / 4)


short = length_reward.with_options(longest=9)
style_if_right = gate(rename(y_reward, "style"), by=correctness_reward)


def theirs(prompts, completions, answer, **kwargs):
    return [float(a in c[0]["content"]) for c, a in zip(completions, answer)]
'''
SHORT, GATED = "length_reward[longest=9]", "style_if_right"
ALL = ["x_reward", "y_reward", SHORT, GATED, "theirs", "format_reward"]
TEXTS = ["one two", "abc", "<answer>12</answer>", "12"]


class Trainer:
    """What LiveRewards sees of GRPOTrainer; `step` is one training step with the four completions above."""

    def __init__(self, functions, columns=("prompt", "answer")):
        self.reward_funcs, self.reward_func_names = functions, [f.__name__ for f in functions]
        self.args, self.num_iterations, self._step = SimpleNamespace(steps_per_generation=1), 1, 0
        self.state = SimpleNamespace(global_step=0, max_steps=9, log_history=[], odd=object())
        self.model, self.train_dataset = SimpleNamespace(training=True), SimpleNamespace(column_names=list(columns))
        self.accelerator = SimpleNamespace(process_index=0, num_processes=1)
        self._logs = {"rewards": defaultdict(lambda: deque(maxlen=4)), "extra": {"old": [1] * 4}}
        self.callbacks = []

    def add_callback(self, callback):
        self.callbacks.append(callback)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        columns = {key: [row[key] for row in inputs] for key in inputs[0] if key != "prompt"}
        call = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids_list, **columns}
        scores = [function(**call, trainer_state=self.state) for function in self.reward_funcs]
        return torch.tensor([[torch.nan if value is None else value for value in column] for column in scores]).T

    def step(self, texts=TEXTS):
        for callback in self.callbacks:
            if self._step == 0:
                callback.on_train_begin(self.args, self.state, None)
            callback.on_step_begin(self.args, self.state, None)
        prompts = [[{"role": "user", "content": "3 * 4?"}]] * len(texts)
        completions = [[{"role": "assistant", "content": text}] for text in texts]
        inputs = [{"prompt": prompt, "answer": "12"} for prompt in prompts]
        scores = self._calculate_rewards(inputs, prompts, completions, [[1] * len(text) for text in texts])
        for i, name in enumerate(self.reward_func_names):
            self._logs["rewards"][name].extend(scores[:, i].tolist())
        self._step += 1
        self.state.global_step += 1
        return dict(zip(self.reward_func_names, scores.mean(0).tolist()))


class Run:
    """A trainer with its live rewards, on files in a folder."""

    def __init__(self, folder, text=OWN, names=ALL, begin=True, sources=None, **more):
        self.folder, self.file = folder, folder / "my_rewards.py"
        self.events, self.said = [], []
        if text is not None and begin:
            self.file.write_text(text)
        if begin:
            chosen_rewards.save_choice(folder, dict.fromkeys(names, 1.0))
        functions, _, _ = chosen_rewards.load_choice(folder, sources)
        self.live = LiveRewards(folder, folder / "run", self.events.append, say=self.said.append, **more)
        self.trainer = Trainer(functions)
        self.live.attach(self.trainer)

    def edit(self, old, new, path=None):
        path = path or self.file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    @property
    def names(self):
        return self.trainer.reward_func_names

    @property
    def errors(self):
        return [event["error"] for event in self.events if event["kind"] == "reward_refused"]


@pytest.fixture
def run(tmp_path):
    started = Run(tmp_path, time_limit=30)
    started.trainer.step()
    return started


def versioned(*names):
    return [f"{name}_v2" if name in names else name for name in ALL]


# --------------------------------------------------------------------------- what an edit changes


def test_editing_one_reward_versions_only_it_and_leaves_the_others_the_very_objects(run):
    before = list(run.trainer.reward_funcs)
    run.edit("len(completion) < LIMIT", "len(completion) < 2 * LIMIT")
    run.trainer.step()
    assert run.names == versioned("x_reward")
    assert [old is new for old, new in zip(before, run.trainer.reward_funcs)] == [name != "x_reward" for name in ALL]
    assert run.trainer.reward_funcs[0].__name__ == "x_reward_v2" and run.trainer.reward_funcs[0].score("1234567") == 1
    assert json.loads((run.folder / "rewards.json").read_text())["rewards"][0]["name"] == "x_reward"


@pytest.mark.parametrize(
    "old, new, users",
    [
        ("LIMIT = 5", "LIMIT = 8", ["x_reward"]),
        ("[a-z]+", "[a-z0-9]+", ["y_reward", GATED]),
        ("return len(WORD", "return 2 * len(WORD", ["y_reward", GATED]),
        ("gate(rename", "gate(at_least=0.5, function=rename", [GATED]),
        ("LIMIT = 5\n", "LIMIT = 5\nLIMIT += 1\n", ["x_reward"]),
        ("return [float(a in", "return [0.5 * float(a in", ["theirs"]),
    ],
)
def test_editing_a_helper_or_a_constant_versions_the_rewards_that_use_it(run, old, new, users):
    run.edit(old, new)
    run.trainer.step()
    assert run.names == versioned(*users) and run.errors == []


@pytest.mark.parametrize(
    "old, new",
    [
        ("LIMIT = 5", "LIMIT = 5  # characters"),
        ("Whether it is short.", "Whether it is brief."),
        ("import re\n", "import re\nimport json\n"),
        ("rename, reward", "rename, reward, style_reward, format_reward"),
        ("\n\n\ndef words", "\n\nUNUSED = 3\ndef words"),
        ("import re\n", "import re\n\nif __name__ == '__main__':\n    words = LIMIT = None\n"),
        ("LIMIT = 5", "LIMIT = 5\n\n\n@reward\ndef new_reward(completion: str) -> float:\n    return 1.0\n"),
    ],
)
def test_comments_docstrings_imports_and_what_no_chosen_reward_uses_change_nothing(run, old, new):
    before = list(run.trainer.reward_funcs)
    run.edit(old, new)
    run.trainer.step()
    assert (run.names, run.events, run.said) == (ALL, [], []) and run.trainer.reward_funcs == before


def test_names_reached_through_the_module_a_star_or_a_late_import_count():
    library = {"rewards.py": "A = 1\ndef a():\n    return A\ndef b():\n    return 2\n"}
    forms = [
        "import rewards\ndef f():\n    return rewards.a()\n",
        "from rewards import *\ndef f():\n    return a()\n",
        "def f():\n    from rewards import a as late\n    return late()\n",
        "import rewards as r\ndef f():\n    return r.a()\n",
    ]
    for own in forms:
        prints = [
            chosen_rewards.fingerprint({"rewards.py": text, "my_rewards.py": own}, "f")
            for text in (library["rewards.py"], library["rewards.py"].replace("A = 1", "A = 5"))
        ]
        assert prints[0] != prints[1], own


def test_changing_a_value_in_place_counts_as_its_definition():
    base = "T = {}\n%s\ndef f():\n    return T\n"
    texts = [
        "",
        "T['a'] = 1",
        "T.update(a=1)",
        "T['b'].x = 2",
        "for i in (1, 2):\n    T[i] = 1",
        "if 1:\n    T = 3\nelse:\n    ...",
    ]
    prints = {chosen_rewards.fingerprint({"rewards.py": "", "my_rewards.py": base % text}, "f") for text in texts}
    assert len(prints) == len(texts)


def test_new_options_of_a_variant_go_on_in_its_place_under_the_name_they_give_it(run):
    run.edit("longest=9", "longest=12")
    run.trainer.step()
    assert run.names[2] == "length_reward[longest=12]_v2" and run.events[0]["reward"] == SHORT
    run.edit("longest=12", "longest=9")
    run.trainer.step()
    assert run.names[2] == f"{SHORT}_v3"
    run.edit("with_options(longest=9)", "with_options(longest=9, shortest=2)")
    run.trainer.step()
    assert run.names[2] == "length_reward[longest=9,shortest=2]_v4"


def test_the_third_version_is_v3_and_another_reward_counts_for_itself(run):
    for limit in (8, 9):
        run.edit(f"LIMIT = {({8: 5, 9: 8})[limit]}", f"LIMIT = {limit}")
        run.trainer.step()
    run.edit("/ 4)", "/ 3)")
    run.trainer.step()
    assert run.names == ["x_reward_v3", "y_reward_v2", SHORT, f"{GATED}_v2", "theirs", "format_reward"]


def test_a_version_never_takes_a_name_that_another_reward_has(tmp_path):
    two = "\n\n@reward\ndef x_reward_v2(completion: str) -> float:\n    return 0.0\n"
    run = Run(tmp_path, OWN + two, ["x_reward", "x_reward_v2"])
    run.trainer.step()
    run.edit("LIMIT = 5", "LIMIT = 6")
    run.trainer.step()
    assert run.names == ["x_reward_v3", "x_reward_v2"]


def test_the_event_has_both_means_on_the_same_completions_and_the_old_column_is_gone(run):
    run.edit("len(completion) < LIMIT", "len(completion) < 8")
    after = run.trainer.step(["a completion that is longer"] * 4)
    (event,) = run.events
    assert (
        json.loads(json.dumps(event))
        == event
        == {
            "step": 2,
            "kind": "reward_changed",
            "reward": "x_reward",
            "was": "x_reward",
            "name": "x_reward_v2",
            "error": None,
            "mean_before": 0.5,
            "mean_after": 0.75,
            "completions": 4,
            "range": [0.0, 1.0],
            "failed": 0,
            "sources": "rewards/v2",
            "source_sha256": chosen_rewards.source_hash(chosen_rewards.read_sources(run.folder)),
        }
    )
    assert after["x_reward_v2"] == 0 and set(run.trainer._logs["rewards"]) == set(run.names)
    assert run.trainer._logs["extra"] == {}, "a new version may log other columns"
    assert len(run.said) == 1 and "x_reward_v2 replaces x_reward" in run.said[0] and "0.500 → 0.750" in run.said[0]


def test_every_version_is_kept(run):
    run.edit("LIMIT = 5", "LIMIT = 6")
    run.trainer.step()
    kept = run.folder / "run/rewards"
    found = {str(path.relative_to(kept)): path.read_text() for path in kept.rglob("*.py")}
    assert found == {
        "v1/rewards.py": (ROOT / "rewards.py").read_text(),
        "v1/my_rewards.py": OWN,
        "v2/rewards.py": (ROOT / "rewards.py").read_text(),
        "v2/my_rewards.py": run.file.read_text(),
    }


def test_an_edit_made_between_loading_the_rewards_and_the_first_batch_is_an_edit(tmp_path):
    run = Run(tmp_path)
    run.edit("LIMIT = 5", "LIMIT = 6")
    run.trainer.step()
    assert run.names == versioned("x_reward") and run.events[0]["mean_before"] is run.events[0]["mean_after"] is None
    assert run.events[0]["step"] == 1 and (tmp_path / "run/rewards/v1/my_rewards.py").read_text() == OWN


def test_an_edit_waits_for_the_batch_that_is_generated_next(run):
    run.trainer.args.steps_per_generation, run.trainer.num_iterations = 2, 2
    run.edit("LIMIT = 5", "LIMIT = 6")
    seen = [("x_reward_v2" in run.trainer.step()) for _ in range(4)]
    assert seen == [False, False, False, True], "steps 2 to 4 go on with the completions of step 1"


def test_the_last_batch_is_one_of_training_not_of_evaluation(run):
    run.trainer.model.training = False
    run.trainer._calculate_rewards([{"answer": "1"}], ["p"], [[{"role": "assistant", "content": "long, long"}]], [[1]])
    run.trainer.model.training = True
    run.edit("LIMIT = 5", "LIMIT = 8")
    run.trainer.step()
    assert run.events[0]["completions"] == 4


def test_the_callers_list_of_functions_stays_as_it_was(tmp_path):
    (tmp_path / "my_rewards.py").write_text(OWN)
    chosen_rewards.save_choice(tmp_path, {"x_reward": 1})
    functions, _, _ = chosen_rewards.load_choice(tmp_path)
    trainer = Trainer(functions)
    LiveRewards(tmp_path, tmp_path / "run", print, say=lambda text: None).attach(trainer)
    trainer.step()
    (tmp_path / "my_rewards.py").write_text(OWN.replace("LIMIT = 5", "LIMIT = 6"))
    trainer.step()
    assert (functions[0].__name__, trainer.reward_funcs[0].__name__) == ("x_reward", "x_reward_v2")


def test_a_trainer_without_chosen_rewards_has_nothing_to_watch(tmp_path):
    with pytest.raises(ValueError, match="nothing to watch"):
        LiveRewards(tmp_path, tmp_path, print).attach(Trainer([lambda completions, **kwargs: [0.0]][:0]))


def test_a_reward_may_use_everything_that_trl_gives(tmp_path):
    text = (
        "from rewards import reward\n@reward\ndef x_reward(completion: str, prompt, answer, completion_ids, trainer_state, log_extra, log_metric):\n"
        "    log_extra('seen', completion)\n    log_metric('m', 1.0)\n    assert prompt[0]['content'] == '3 * 4?' and answer == '12'\n"
        "    return min(1.0, len(completion_ids) / (100 - trainer_state.global_step))\n"
    )
    run = Run(tmp_path, text, ["x_reward"])
    run.trainer.state.global_step = 10
    run.trainer.step()
    run.edit("100 -", "109 -")
    run.trainer.step()
    assert run.errors == [] and run.names == ["x_reward_v2"]
    assert run.events[0]["mean_after"] == pytest.approx(sum(map(len, TEXTS)) / 4 / (109 - 11))


def test_an_edit_is_refused_where_a_column_cannot_be_handed_to_the_checker(run):
    run.live.batch["columns"]["odd"] = [lambda: 1] * 4
    run.edit("LIMIT = 5", "LIMIT = 8")
    run.trainer.step()
    assert "the check cannot be run" in run.errors[0] and run.names == ALL


# --------------------------------------------------------------------------- what is refused

X = "    return float(len(completion) < LIMIT)"
BAD = {
    "syntax": (X, "    return float(", "SyntaxError.*my_rewards.py, line 1"),
    "import": ("LIMIT = 5", "LIMIT = 5 / 0", r"ZeroDivisionError.*in my_rewards.py, line 7: LIMIT = 5 / 0"),
    "renamed": (
        "def x_reward",
        "def z_reward",
        "x_reward is no longer defined; my_rewards.py has: .*z_reward, y_reward",
    ),
    "no decorator": ("@reward\ndef x_reward", "def x_reward", "x_reward is not a reward yet: put @reward"),
    "column": (
        "def x_reward(completion: str)",
        "def x_reward(completion: str, anser)",
        "needs the data-set column 'anser'.*Did you mean 'answer'",
    ),
    "range": (X, "    return 7.0", r"returned 7.0, which is not a finite number in \[0, 1\]"),
    "nan": (X, "    return float('nan')", "returned nan, which is not a finite number"),
    "exception": (
        X,
        "    return 1 / len(completion[3:])",
        r"x_reward raised ZeroDivisionError.*'abc'; in my_rewards.py, line 18: return 1",
    ),
    "no number": (X, "    return 'good'", "returned 'good'"),
    "length": (
        '[float(a in c[0]["content"])',
        '[1.0][:0] and [float(a in c[0]["content"])',
        "theirs returned 0 scores for 4 completions",
    ),
    "exit": ("LIMIT = 5", "LIMIT = 5\nraise SystemExit(3)", r"SystemExit: 3 \(my_rewards.py, line 8\)"),
    "exit in the call": (X, "    raise SystemExit", "x_reward: SystemExit"),
    "hard exit": (
        "LIMIT = 5",
        "LIMIT = 5\nimport os\nos._exit(0)",
        "loading the files: the process that checks it ended with exit code 0",
    ),
    "crash": (
        X,
        "    import ctypes\n    ctypes.string_at(0)",
        "checking x_reward on the last completions: .* exit code -11",
    ),
    "same name twice": (
        "LIMIT = 5",
        "LIMIT = 5\nz = rename(length_reward, 'x_reward')",
        "two rewards are called x_reward",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_edit_is_refused_with_its_reason_the_old_goes_on_and_a_good_one_is_taken(run, what):
    old, new, reason = BAD[what]
    before = list(run.trainer.reward_funcs)
    run.edit(old, new)
    means = run.trainer.step()
    assert len(run.events) == 1, run.events
    event = run.events[0]
    assert json.loads(json.dumps(event)) == event and (event["kind"], event["step"]) == ("reward_refused", 2)
    assert re.search(reason, run.said[0]), run.said
    assert run.names == ALL and run.trainer.reward_funcs == before and means["x_reward"] == 0.5
    run.file.write_text(OWN.replace("LIMIT = 5", "LIMIT = 8"))
    run.trainer.step()
    assert run.names == versioned("x_reward")


@pytest.mark.parametrize("where", ["LIMIT = 5", X])
def test_an_endless_loop_is_ended_and_refused(tmp_path, where):
    run = Run(tmp_path)
    run.trainer.step()
    run.live.time_limit = 6
    run.edit(where, "    " * where.startswith(" ") + "while True: pass\n" + where)
    began = time.monotonic()
    run.trainer.step()
    assert time.monotonic() - began < 15 and run.names == ALL
    assert "not done after 6 s, perhaps an endless loop" in run.errors[0]
    assert run.events[0]["reward"] == (None if where == "LIMIT = 5" else "x_reward")


def test_what_the_edited_file_starts_ends_with_the_check(run):
    mark = run.folder / "pid"
    run.edit(
        "LIMIT = 5",
        f"LIMIT = 5\nimport subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(mark)!r}, 'w').write(str(child.pid))\nraise KeyError('no')",
    )
    run.trainer.step()
    assert "KeyError" in run.errors[0]
    state = Path(f"/proc/{mark.read_text()}/stat")
    for _ in range(100):
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the child process still runs")


def test_one_bad_reward_refuses_the_whole_edit(run):
    run.edit(X, "    return 7.0")
    run.edit("/ 4)", "/ 3)")
    run.trainer.step()
    assert run.names == ALL and [event["reward"] for event in run.events] == ["x_reward"]
    run.edit("return 7.0", "return 0.7")
    run.trainer.step()
    assert run.names == versioned("x_reward", "y_reward", GATED)


def test_a_half_written_file_is_refused_and_the_whole_one_taken(run):
    whole = OWN.replace("LIMIT = 5", "LIMIT = 8")
    for length in (0, 60, len(whole) // 2, len(whole)):
        run.file.write_text(whole[:length])
        run.trainer.step()
    assert len(run.errors) == 3 and "my_rewards.py is empty" in run.errors[0] and run.names == versioned("x_reward")


def test_a_deleted_or_unreadable_file_is_refused_once_and_the_old_goes_on(run):
    run.file.unlink()
    run.trainer.step()
    run.trainer.step()
    assert run.errors == ["my_rewards.py is not there any more"] and run.names == ALL
    run.file.write_bytes(b"\xff\xfe")
    run.trainer.step()
    run.trainer.step()
    assert len(run.errors) == 2 and "cannot be read: UnicodeDecodeError" in run.errors[1]
    run.file.write_text(OWN)
    run.trainer.step()
    assert run.names == ALL and len(run.events) == 2, "what is in use is no edit"


def test_the_same_bad_content_is_tried_once(run):
    run.edit(X, "    return 7.0")
    for seconds in (0, 100, 200):
        os.utime(run.file, (seconds, seconds))
        run.trainer.step()
    assert len(run.events) == 1


def test_a_check_that_cannot_be_run_refuses_the_edit_and_not_the_run(run, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(chosen_rewards.tempfile, "TemporaryDirectory", full)
    run.edit("LIMIT = 5", "LIMIT = 8")
    run.trainer.step()
    assert "No space left" in run.errors[0] and run.names == ALL


def test_unchanged_files_are_not_checked_and_looking_takes_less_than_5_milliseconds(run, monkeypatch):
    monkeypatch.setattr(chosen_rewards, "check_in_process", lambda *job: pytest.fail("checked"))
    took = []
    for _ in range(5):
        began = time.perf_counter()
        run.live.on_step_begin(run.trainer.args, run.trainer.state, None)
        took.append(time.perf_counter() - began)
    assert min(took) < 5e-3, took


def test_two_writes_within_one_tick_of_the_clock_are_two_edits(run):
    run.edit("LIMIT = 5", "LIMIT = 6")
    at = os.stat(run.file).st_mtime_ns
    run.trainer.step()
    run.edit("LIMIT = 6", "LIMIT = 7")
    os.utime(run.file, ns=(at, at))
    run.trainer.step()
    assert run.names[0] == "x_reward_v3"


# --------------------------------------------------------------------------- the library


@pytest.fixture
def library(tmp_path, monkeypatch):
    copy = tmp_path / "library" / "rewards.py"
    copy.parent.mkdir()
    copy.write_text((ROOT / "rewards.py").read_text())
    monkeypatch.setattr(chosen_rewards, "LIBRARY", copy)
    return copy


NAMES = ["x_reward", "style_reward", "format_reward", SHORT]


def test_an_edit_of_the_library_versions_what_uses_it_and_leaves_the_imported_one_alone(tmp_path, library):
    registered = dict(rewards.REGISTRY)
    run = Run(tmp_path, names=NAMES)
    run.trainer.step()
    run.edit("max(0.0, 1 - hits / 4)", "max(0.0, 1 - hits / 2)", library)
    run.trainer.step()
    assert run.names == ["x_reward", "style_reward_v2", "format_reward", SHORT] and run.errors == []
    assert run.trainer.reward_funcs[1].score("Sure!") == 0.5 and rewards.style_reward.score("Sure!") == 0.75
    assert sys.modules["rewards"] is rewards and rewards.REGISTRY == registered
    assert (tmp_path / "run/rewards/v2/rewards.py").read_text() == library.read_text()
    run.edit("LIMIT = 5", "LIMIT = 8")
    run.trainer.step()
    assert run.names[0] == "x_reward_v2" and run.errors == [], "rewards of one's own on top of an edited library"


def test_a_broken_or_deleted_library_is_refused(tmp_path, library):
    run = Run(tmp_path, names=NAMES)
    run.trainer.step()
    run.edit("def style_reward(", "def style_reward((", library)
    run.trainer.step()
    library.unlink()
    run.trainer.step()
    assert "SyntaxError" in run.errors[0] and "rewards.py is not there any more" in run.errors[1] and run.names == NAMES


def test_the_file_to_correct_is_the_one_that_the_error_names_or_that_was_edited(tmp_path, library):
    run = Run(tmp_path, names=NAMES)
    run.trainer.step()
    run.edit("max(0.0, 1 - hits / 4)", "7.0", library)
    run.trainer.step()
    run.edit("7.0", "1 / 0", library)
    run.edit("LIMIT = 5", "LIMIT = 6")
    run.trainer.step()
    run.edit("LIMIT = 6", "LIMIT = 5 / 0")
    run.trainer.step()
    correct = [said.split("Correct ")[-1] for said in run.said]
    assert correct == [f"{library}."] * 2 + [f"{run.file} (the reward cell of notebook 02 writes it)."]


def test_a_reward_of_ones_own_under_a_library_name_replaces_it(tmp_path):
    run = Run(tmp_path, None, ["format_reward", "style_reward"])
    run.trainer.step()
    run.file.write_text(
        "from rewards import reward\n@reward\ndef format_reward(completion: str) -> float:\n    return 0.25\n"
    )
    assert run.trainer.step() == {"format_reward_v2": 0.25, "style_reward": 1.0}


# --------------------------------------------------------------------------- resuming


def two_versions(folder):
    """A run at x_reward_v2, its state as a checkpoint would keep it, and then a third version."""
    run = Run(folder)
    run.trainer.step()
    run.edit("LIMIT = 5", "LIMIT = 8")
    run.trainer.step()
    state = json.loads(json.dumps(run.live.state()))
    run.edit("LIMIT = 8", "LIMIT = 1")
    run.trainer.step()
    return state


def resumed(folder, state):
    run = Run(folder, begin=False, sources=kept_sources(folder / "run"))
    run.live.restore(state)
    return run


def test_a_resumed_run_goes_on_with_the_checkpoints_version_and_says_nothing_of_unchanged_files(tmp_path):
    state = two_versions(tmp_path)
    (tmp_path / "my_rewards.py").write_text(OWN.replace("LIMIT = 5", "LIMIT = 8"))
    run = resumed(tmp_path, state)
    assert run.trainer.step()["x_reward_v2"] == 0.75 and run.events == [] and run.names == versioned("x_reward")
    assert json.loads(json.dumps(run.live.state())) == state


def test_a_file_edited_since_the_checkpoint_is_an_edit_at_the_first_batch(tmp_path):
    state = two_versions(tmp_path)
    run = resumed(tmp_path, state)
    assert run.trainer.step()["x_reward_v3"] == 0 and run.events[0]["step"] == 1
    assert run.events[0]["sources"] == "rewards/v4", "the text that a lost stretch of the run kept as v3 stays"
    again = resumed(tmp_path, run.live.state())
    assert again.trainer.step()["x_reward_v3"] == 0 and again.events == []


def test_an_edit_is_seen_even_where_the_resumed_trainer_was_made_of_it(tmp_path):
    state = two_versions(tmp_path)
    run = Run(tmp_path, begin=False)  # loads the files as they are, not as they were kept
    run.live.restore(state)
    assert run.names == versioned("x_reward") and run.trainer.reward_funcs[0].score("1234567") == 1
    assert run.trainer.step()["x_reward_v3"] == 0


@pytest.mark.parametrize(
    "text",
    ["def x_reward(", None, OWN.replace("def x_reward(completion: str)", "def x_reward(completion: str, anser)")],
)
def test_a_file_broken_since_the_checkpoint_is_refused_and_the_checkpoints_version_goes_on(tmp_path, text):
    state = two_versions(tmp_path)
    (tmp_path / "my_rewards.py").unlink() if text is None else (tmp_path / "my_rewards.py").write_text(text)
    run = resumed(tmp_path, state)
    run.trainer.step()
    assert run.trainer.step()["x_reward_v2"] == 0.75 and len(run.errors) == 1
    run.live.restore({})  # of a checkpoint that knew no live rewards: nothing changes
    assert run.names == versioned("x_reward")


def test_a_library_edited_before_the_checkpoint_is_the_one_that_goes_on(tmp_path, library):
    run = Run(tmp_path, names=NAMES)
    run.trainer.step()
    run.edit("max(0.0, 1 - hits / 4)", "max(0.0, 1 - hits / 2)", library)
    run.trainer.step()
    state = run.live.state()
    again = Run(tmp_path, begin=False)
    again.live.restore(state)
    again.trainer.step()
    assert (
        again.events == []
        and again.names[1] == "style_reward_v2"
        and again.trainer.reward_funcs[1].score("Sure!") == 0.5
    )


def test_a_checkpoint_of_other_rewards_or_without_its_texts_is_refused(tmp_path):
    state = two_versions(tmp_path)
    (tmp_path / "my_rewards.py").write_text(OWN)
    with pytest.raises(ValueError, match="trained with .*y_reward.*this trainer has x_reward: choose the same"):
        Run(tmp_path, names=["x_reward"]).live.restore(state)
    (tmp_path / "run/rewards/v2/my_rewards.py").unlink()
    chosen_rewards.save_choice(tmp_path, dict.fromkeys(ALL, 1.0))
    with pytest.raises(ValueError, match="v2 has not all of rewards.py, my_rewards.py"):
        Run(tmp_path, begin=False).live.restore(state)


DIVIDES = OWN.replace(X, "    return 1 / len(completion[3:])")


class Rows(list):
    column_names = ["prompt", "answer"]


def recorded(folder, status="stopped"):
    """A run at x_reward_v2 that left a record of its last completions; its state, and the rows of its data set."""
    state = two_versions(folder)
    (folder / "my_rewards.py").write_text(kept_sources(folder / "run", 2)["my_rewards.py"])
    shutil.rmtree(folder / "run/rewards/v3")
    asked = "user\n3 * 4?\nassistant\n"
    table = pd.DataFrame({"prompt": asked, "completion": TEXTS, "tokens": 3, "data/answer": "1…", "x_reward_v2": 0.75})
    write_parquet(table, folder / "run/completions/completions_00002.parquet")
    write_json(folder / "run/run.json", {"status": status})
    return state, Rows(
        [{"prompt": [{"role": "user", "content": text}], "answer": text[-2]} for text in ("4?", "3 * 4?")]
    )


def test_an_edit_that_fails_on_the_last_recorded_completions_is_refused_at_a_second_start(tmp_path):
    state, rows = recorded(tmp_path)
    (tmp_path / "my_rewards.py").write_text(DIVIDES)
    run = resumed(tmp_path, state)
    run.trainer.train_dataset = rows
    assert run.trainer.step()["x_reward_v2"] == 0.75 and run.names == versioned("x_reward")
    assert "ZeroDivisionError" in run.errors[0] and run.said[0].count("Correct ") == 1
    assert run.said[0].endswith(f"Correct {tmp_path}/my_rewards.py (the reward cell of notebook 02 writes it).")


def test_a_good_edit_at_a_second_start_is_measured_on_the_last_recorded_completions(tmp_path):
    state, rows = recorded(tmp_path)
    (tmp_path / "my_rewards.py").write_text(OWN.replace("LIMIT = 5", "LIMIT = 3"))
    run = resumed(tmp_path, state)
    run.trainer.train_dataset = rows
    run.trainer.step()
    (event,) = run.events
    assert (event["name"], event["mean_before"], event["mean_after"], event["completions"]) == (
        "x_reward_v3",
        0.75,
        0.25,
        4,
    )


def test_recorded_completions_get_the_prompts_and_whole_columns_of_their_rows_and_others_are_left_out(tmp_path):
    _, rows = recorded(tmp_path)
    path = tmp_path / "run/completions/completions_00010.parquet"
    logged = ["user\n4?\nassistant\nIt is 2.\nuser\n3 * 4?\nassistant\n", "user\nunknown\nassistant\n"]
    write_parquet(pd.DataFrame({"prompt": logged, "completion": ["12", "?"], "tokens": [1, 1]}), path)
    rows[1]["answer"] = "long " * 900
    batch, table = recorded_batch(tmp_path / "run", rows)
    assert (
        batch["prompts"] == [rows[1]["prompt"]] and batch["columns"] == {"answer": ["long " * 900]} and len(table) == 1
    )
    assert (batch["completions"], batch["completion_ids"]) == (["12"], [[0]])
    assert recorded_batch(tmp_path / "run", rows[:0]) is None and recorded_batch(tmp_path, rows) is None


@pytest.mark.parametrize("text, reason", [(DIVIDES, "ZeroDivisionError"), ("def x_reward(", "SyntaxError")])
def test_rewards_that_fail_let_an_unfinished_run_go_on_with_its_own_and_a_new_one_not_begin(tmp_path, text, reason):
    _, rows = recorded(tmp_path)
    (tmp_path / "my_rewards.py").write_text(text)
    said, run, advice = [], tmp_path / "run", "/my_rewards.py (the reward cell of notebook 02 writes it)."
    functions, _, record = load_checked(tmp_path, run, rows, say=said.append)
    assert functions[0].score("1234567") == 1 and reason in record["refused"] and record["refused"].endswith(advice)
    assert said == [
        f"note: {record['refused']} An unfinished run goes on with the rewards that it had; a new one does not begin."
    ]

    def new_run(resume=True):
        with pytest.raises(ValueError, match=reason) as raised:
            load_checked(tmp_path, run, rows, resume)
        return str(raised.value)

    assert new_run(resume=False) == record["refused"]
    write_json(run / "run.json", {"status": "finished"})
    assert new_run() == record["refused"]
    shutil.rmtree(run)
    if reason == "SyntaxError":  # what only fails on completions is not known without a record
        assert new_run().endswith(advice)


def test_rewards_as_the_run_kept_them_and_good_edits_start_without_a_word(tmp_path, monkeypatch, capsys):
    _, rows = recorded(tmp_path)
    (tmp_path / "my_rewards.py").write_text(OWN.replace("LIMIT = 5", "LIMIT = 3"))
    functions, _, record = load_checked(tmp_path, tmp_path / "run", rows)
    assert functions[0].score("12") == 1 and functions[0].score("1234") == 0 and "refused" not in record
    (tmp_path / "my_rewards.py").write_text(kept_sources(tmp_path / "run", 2)["my_rewards.py"])
    monkeypatch.setattr(chosen_rewards, "check_in_process", lambda *job: pytest.fail("checked"))
    load_checked(tmp_path, tmp_path / "run", rows)
    assert capsys.readouterr().out == ""


# --------------------------------------------------------------------------- several processes


TWO = """
import sys
from pathlib import Path
from accelerate import Accelerator
sys.path[:0] = {paths!r}
from tests.train import test_live_rewards as t

folder = Path({folder!r})
accelerator = Accelerator(cpu=True)
calculate = t.Trainer._calculate_rewards
t.Trainer._calculate_rewards = lambda *batch: accelerator.gather(calculate(*batch).contiguous())
run = t.Run(folder, begin=False, names=["x_reward", "y_reward"])
run.trainer.accelerator = accelerator
rank, found = accelerator.process_index, []
for edit in (None, ("LIMIT = 5", "LIMIT = 8"), ("LIMIT = 8", "LIMIT = (")):
    accelerator.wait_for_everyone()
    if edit and rank == 1:  # saved on the machine of either: the first looks
        run.edit(*edit)
    accelerator.wait_for_everyone()
    run.trainer.step(["1234567"] * 4 if rank else t.TEXTS)
    found.append((run.names[0], run.trainer.reward_funcs[0].score("1234567")))
(folder / f"found{{rank}}").write_text(repr((found, [e["kind"] for e in run.events], run.events and run.events[0]["mean_before"])))
"""


def test_two_processes_change_at_the_same_step_and_one_of_them_tells(tmp_path):
    (tmp_path / "my_rewards.py").write_text(OWN)
    chosen_rewards.save_choice(tmp_path, {"x_reward": 1, "y_reward": 1})
    script = tmp_path / "two.py"
    script.write_text(TWO.format(paths=[str(ROOT / "tests"), str(ROOT), str(ROOT / "notebooks")], folder=str(tmp_path)))
    command = [warm_python(), "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
    done = subprocess.run(
        command,
        env={**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    same = [("x_reward", 0.0), ("x_reward_v2", 1.0), ("x_reward_v2", 1.0)]
    assert (tmp_path / "found0").read_text() == repr((same, ["reward_changed", "reward_refused"], 0.5))
    assert (tmp_path / "found1").read_text() == repr((same, [], []))


# --------------------------------------------------------------------------- the real trainer


def test_a_real_run_logs_the_old_name_then_the_new_one(tmp_path, tokenizer):
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    own = "from rewards import reward\n@reward\ndef x_reward(completion: str, answer) -> float:\n    return len(set(completion)) / 99\n"
    (tmp_path / "my_rewards.py").write_text(own)
    chosen_rewards.save_choice(tmp_path, {"x_reward": 0.5, "format_reward": 1.0})
    functions, weights, _ = chosen_rewards.load_choice(tmp_path)

    class Editor(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 1:
                (tmp_path / "my_rewards.py").write_text(own.replace("99", "199"))

    questions = [[{"role": "user", "content": f"What is {i} + 2?"}] for i in range(16)]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(STARTER_POLICY, dtype=torch.float32),
        processing_class=tokenizer,
        reward_funcs=functions,
        train_dataset=Dataset.from_dict({"prompt": questions, "answer": [str(i + 2) for i in range(16)]}),
        args=GRPOConfig(
            output_dir=str(tmp_path / "run"),
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            num_generations=4,
            max_completion_length=32,
            max_steps=3,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            reward_weights=weights,
            disable_tqdm=True,
        ),
    )
    events = []
    LiveRewards(tmp_path, tmp_path / "run", events.append, say=lambda text: None).attach(trainer)
    trainer.add_callback(Editor())
    trainer.train()
    rows = [row for row in trainer.state.log_history if "reward" in row]
    found = [sorted(key for key in row if key.startswith("rewards/x") and key.endswith("mean")) for row in rows]
    assert found == [["rewards/x_reward/mean"], ["rewards/x_reward_v2/mean"], ["rewards/x_reward_v2/mean"]]
    assert set(trainer._logs["rewards"]) == {"x_reward_v2", "format_reward"} == set(trainer.reward_func_names)
    assert {len(column) for column in trainer._logs["rewards"].values()} == {
        16
    } and trainer.reward_weights.tolist() == [0.5, 1.0]
    (event,) = events
    assert event["step"] == 2 and event["completions"] == 16
    assert event["mean_before"] == pytest.approx(rows[0]["rewards/x_reward/mean"], abs=1e-6)
    assert event["mean_after"] == pytest.approx(event["mean_before"] * 99 / 199, abs=1e-6)
    reward = sum(w * rows[1][f"rewards/{name}/mean"] for name, w in zip(trainer.reward_func_names, weights))
    assert rows[1]["reward"] == pytest.approx(reward, abs=1e-5)
