"""Notebook 00: what its own cells compute, beside the pinned TRL, and that the comparison sees a wrong loss."""

import contextlib
import re

import nbformat
import pytest
import torch
from trl import GRPOConfig, GRPOTrainer

from lab.files import ROOT
from lab.scratch import exercises, trl_watch

pytestmark = pytest.mark.skipif(
    GRPOTrainer.__module__ != "trl.trainer.grpo_trainer",
    reason="on a GPU Unsloth's copy of the trainer stands in for TRL's",
)
NOTEBOOK = ROOT / "notebooks" / "00_grpo_from_scratch.ipynb"
CELLS = nbformat.read(NOTEBOOK, 4).cells
LOSSES, BETAS, SCALES = ("grpo", "bnpo", "dapo", "dr_grpo"), (0.0, 0.04), ("group", "batch", "none")
USUAL = ("dapo", 0.04, "group")


def tagged(*tags):
    return [cell.source for cell in CELLS if set(tags) & set(cell.metadata.get("tags", []))]


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """What the notebook's cells define: the functions that a reader sees, and no others."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    names = {}
    exec(tagged("parameters")[0], names)
    names["OUTPUTS"] = str(tmp_path_factory.mktemp("outputs"))
    for source in tagged("defines"):
        exec(source, names)
    yield names
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def trained(cells):
    """Two watched steps of TRL's trainer by setting; each is trained once."""
    kept = {}

    def steps(*setting, **more):
        key = (*setting, *sorted(more.items()))
        if key not in kept:
            kept[key] = cells["trl_steps"](*setting, **more)
        return kept[key]

    return steps


@contextlib.contextmanager
def edited(cells, old, new):
    """The notebook with one of the cells of its loss changed."""
    (source,) = [source for source in tagged("loss") if old in source]
    exec(source.replace(old, new), cells)
    try:
        yield
    finally:
        exec(source, cells)


# --------------------------------------------------------------------------- equal to TRL's


# every pair of two of the three: 12 of 24
SETTINGS = [(loss, BETAS[(i + j + 1) % 2], scale) for i, loss in enumerate(LOSSES) for j, scale in enumerate(SCALES)]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_loss_and_gradient_are_those_of_trl(cells, trained, setting):
    for number in (0, 1):
        found = cells["compare"](trained(*setting), number, *setting)
        assert found["loss difference"] < 1e-5 and found["gradient difference"] < 1e-5, (number, found)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_they_are_with_plain_k3_too(cells, trained, loss_type):
    setting = (loss_type, 0.04, "group")
    watch = trained(*setting, use_bias_correction_kl=False)
    found = cells["compare"](watch, 1, *setting, bias_correction_kl=False)
    assert found["loss difference"] < 1e-5 and found["gradient difference"] < 1e-5, found
    assert cells["compare"](watch, 1, *setting)["gradient difference"] > 1e-3, "the correction must show"


def test_they_are_where_no_completion_reaches_the_limit(cells, trained):
    """dr_grpo divides by the limit, not by the width of the batch; three micro-batches, and fresh completions."""
    for loss_type in ("dapo", "dr_grpo"):
        setting, more = (loss_type, 0.04, "group"), {"max_completion_length": 90, "max_steps": 1, "num_iterations": 1}
        watch = trained(*setting, per_device_train_batch_size=4, gradient_accumulation_steps=3, **more)
        widths = {batch["completion_ids"].shape[1] for batch in watch.steps[0].batches}
        assert len(watch.steps[0].batches) == 3 and max(widths) < 90, widths
        assert "old_per_token_logps" not in watch.steps[0].batches[0]
        found = cells["compare"](watch, 0, *setting, max_tokens=90)
        assert found["loss difference"] < 1e-5 and found["gradient difference"] < 1e-5, found
    with edited(cells, "len(mask) * max_tokens", "mask.numel()"):
        assert cells["compare"](watch, 0, *setting, max_tokens=90)["gradient difference"] > 1e-2
    with edited(cells, "return loss / micro_batches", "return loss / 2"):
        assert cells["compare"](watch, 0, *setting, max_tokens=90)["gradient difference"] > 1e-2


def test_a_mask_ends_at_the_first_end_token(cells):
    end, pad = cells["END"], cells["PAD"]
    ids = torch.tensor([[5, end, 7, end], [end, end, end, 5], [5, pad, 6, 7], [5, 6, 7, end]])
    assert cells["completion_mask"](ids).tolist() == [[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]


def test_masks_and_advantages_are_those_of_trl(cells, trained):
    for scale in SCALES:
        watch = trained("dapo", 0.04, scale)
        advantages = cells["advantages_of"](watch.rewards, 4, scale)
        for batch in (batch for step in watch.steps for batch in step.batches):
            assert torch.equal(cells["completion_mask"](batch["completion_ids"]), batch["completion_mask"].long())
            assert torch.allclose(advantages[batch["place"]], batch["advantages"], atol=1e-6)


def test_the_batch_that_is_compared_has_every_case_in_it(cells, trained):
    watch = trained(*USUAL)
    first, second = watch.steps
    groups = watch.rewards.view(-1, 4)
    assert (groups.std(1) > 0.1).any() and (groups.std(1) == 0).any(), groups
    masks = [batch["completion_mask"] for batch in first.batches]
    ended = torch.cat([(batch["completion_ids"] == cells["END"]).any(1) for batch in first.batches])
    assert ended.any() and not ended.all(), "one that was cut, one that ended"
    assert masks[0].sum() != masks[1].sum(), "bnpo is not dapo"
    assert any((batch["prompt_mask"] == 0).any() for batch in first.batches), "padded prompts"
    model = cells["load"]()
    model.load_state_dict(second.weights, strict=False)
    clipped = dict.fromkeys(("up", "down", "the wrong way"), 0)
    for batch in second.batches:
        seen = (batch["prompt_ids"], batch["prompt_mask"], batch["completion_ids"], batch["completion_mask"], 0.9)
        with torch.no_grad():
            ratio = (cells["token_logps"](model, *seen) - batch["old_per_token_logps"]).exp()
        signs = batch["advantages"][:, None].sign() * batch["completion_mask"]
        clipped["up"] += ((ratio > 1.28) & (signs > 0)).sum().item()
        clipped["down"] += ((ratio < 0.8) & (signs < 0)).sum().item()
        clipped["the wrong way"] += ((ratio > 1.28) & (signs < 0) | (ratio < 0.8) & (signs > 0)).sum().item()
        assert (
            (batch["ref_per_token_logps"] - batch["old_per_token_logps"]) * batch["completion_mask"]
        ).abs().max() > 0.01
    assert min(clipped.values()) > 0, clipped


WRONG = [
    ("min forgotten", "-torch.min(ratio * advantages[:, None], ", "-torch.min(clipped * advantages[:, None], ", USUAL),
    ("max for min", "-torch.min(", "-torch.max(", USUAL),
    ("not clipped", "ratio.clamp(1 - epsilon, 1 + epsilon_high)", "ratio", USUAL),
    ("epsilon_high ignored", "1 + epsilon_high)", "1 + epsilon)", USUAL),
    ("the ratio always 1", "torch.exp(logps - old_logps)", "torch.exp(logps - logps.detach())", USUAL),
    ("KL the other way round", "gap = ref_logps - logps", "gap = logps - ref_logps", USUAL),
    ("k3 without its 1", "gap.exp() - gap - 1", "gap.exp() - gap", USUAL),
    ("KL without the ratio", "k3 * ratio if bias_correction_kl else k3", "k3", USUAL),
    ("no KL", "if beta:", "if False:", USUAL),
    ("not masked", "per_token = per_token * mask", "per_token = per_token * 1", USUAL),
    ("tokens of the micro-batch", "mask.sum() if step_tokens is None else step_tokens", "mask.sum()", USUAL),
    ("micro-batches added up", "return loss / micro_batches", "return loss", ("grpo", 0.0, "group")),
    ("a mean for a constant", "len(mask) * max_tokens", "mask.sum()", ("dr_grpo", 0.0, "group")),
    (
        "standard deviation over n",
        "groups.std(dim=1, keepdim=True)",
        "groups.std(dim=1, keepdim=True, correction=0)",
        USUAL,
    ),
    ("mean of the whole batch", "groups.mean(dim=1, keepdim=True)", "groups.mean()", USUAL),
    ("group for batch", "rewards.std()", "groups.std(dim=1, keepdim=True)", ("bnpo", 0.0, "batch")),
    ("read one place late", "logits[:, :-1]", "logits[:, 1:]", USUAL),
    ("temperature forgotten", "[:, :-1] / temperature", "[:, :-1]", USUAL),
    ("padding attended to", "torch.cat([prompt_mask, mask], dim=1)", "torch.ones_like(read)", USUAL),
    ("no end token", "ends.cumsum(1) - ends == 0", "ends.cumsum(1) == 0", USUAL),
    ("a bound a little off", "ratio.clamp(1 - epsilon,", "ratio.clamp(1 - 1.01 * epsilon,", USUAL),
    ("the ratio of the KL detached", "k3 * ratio if", "k3 * ratio.detach() if", USUAL),
    (
        "one more token in the divisor",
        "(mask.sum() if step_tokens is None else step_tokens)",
        "(1 + step_tokens)",
        USUAL,
    ),
]


def test_the_notebook_says_how_many_wrong_losses_there_are():
    assert len(WRONG) == 23 and "sees it fail for twenty-three wrong losses" in "".join(cell.source for cell in CELLS)


@pytest.mark.parametrize(("old", "new", "setting"), [one[1:] for one in WRONG], ids=[one[0] for one in WRONG])
def test_a_wrong_loss_is_seen(cells, trained, old, new, setting):
    with edited(cells, old, new):
        found = cells["compare"](trained(*setting), 1, *setting)
    assert max(found["loss difference"], found["gradient difference"]) > 3e-5, found


def test_no_two_settings_have_the_same_gradient(trained):
    every = [trained(*setting).steps[0].gradients for setting in SETTINGS]
    flat = torch.stack([torch.cat([value.flatten() for value in one.values()]) for one in every])
    assert torch.pdist(flat).min() > 1e-3 * flat.norm(dim=1).max()


def test_the_loss_is_under_60_lines():
    assert sum(len(source.splitlines()) for source in tagged("loss")) < 60


def test_a_name_that_is_none_is_refused(cells):
    two = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="it must be 'grpo', 'bnpo', 'dapo' or 'dr_grpo'"):
        cells["grpo_loss"](two, two, two, two + 1, two[:, 0], loss_type="ppo")
    with pytest.raises(ValueError, match="it must be 'group', 'batch' or 'none'"):
        cells["advantages_of"](two[:, 0], 2, "std")


# --------------------------------------------------------------------------- the watch


def test_the_watched_losses_are_those_that_trl_logs_and_watching_changes_nothing(cells, tmp_path):
    def train(watch):
        config = GRPOConfig(
            output_dir=str(tmp_path),
            num_generations=4,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            max_steps=2,
            max_completion_length=8,
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
            gradient_checkpointing=False,
            seed=1,
        )
        rows = cells["Dataset"].from_list(cells["train"][:4])
        more = {"processing_class": cells["tokenizer"], "train_dataset": rows}
        trainer = GRPOTrainer(model=cells["noisy"](), args=config, reward_funcs=cells["trl_score"], **more)
        (watch.attach(trainer) if watch else trainer).train()
        return trainer

    watch = trl_watch.Watch()
    watched, alone = train(watch), train(None)
    logged = [row["loss"] for row in watched.state.log_history if "loss" in row]
    assert [sum(step.losses) for step in watch.steps] == pytest.approx(logged, abs=1e-7) and len(logged) == 2
    for one, other in zip(watched.model.parameters(), alone.model.parameters()):
        assert torch.equal(one, other)
    assert set(torch.cat([batch["place"] for batch in watch.steps[1].batches]).tolist()) == set(range(8))


# --------------------------------------------------------------------------- sampling and training


def test_the_sampler_draws_what_the_policy_says(cells):
    """The log-probabilities are those of one reading; the first token's frequencies are the softmax's."""
    model, rows = cells["reference"], cells["train"][:3]
    prompts = cells["encode"](rows)
    torch.manual_seed(0)
    ids, drawn = cells["sample"](model, *prompts, 40, 0.8)
    mask = cells["completion_mask"](ids)
    assert (prompts[1] == 0).any() and ids.shape == drawn.shape and ids.shape[1] <= 40
    again = cells["token_logps"](model, *prompts, ids, mask, 0.8)
    assert ((again - drawn) * mask).abs().max() < 1e-4
    assert (ids[mask == 0] == cells["PAD"]).all()
    short = cells["encode"]([{"prompt": [{"role": "user", "content": "9"}]}])
    first, _ = cells["sample"](model, *(part.expand(3000, -1) for part in short), 1)
    with torch.no_grad():
        wanted = model(*short).logits[0, -1].softmax(-1)
    found = torch.bincount(first[:, 0], minlength=len(wanted)) / 3000
    assert (found - wanted).abs().max() < 0.04 and wanted.max() < 0.9, wanted.max()


def loop(cells, **changes):
    """The notebook's training cell as it stands, with other parameters; what it left."""
    names = cells | changes
    for function in ("score", "measure", "texts_of"):  # their globals shall be these
        if function in names:
            names[function] = type(names[function])(names[function].__code__, names)
    (source,) = tagged("training")
    assert len(source.splitlines()) <= 42
    exec(source, names)
    return names


def test_the_loop_makes_what_is_paid_for_likelier(cells):
    def thinks(prompts, completions, **_):
        return [float(text.startswith("<think>")) for text in completions]

    rewards = {**dict.fromkeys(cells["REWARDS"], 0.0), thinks: 1.0}
    small = {"STEPS": 8, "PROMPTS_PER_STEP": 3, "MAX_COMPLETION_TOKENS": 6, "LEARNING_RATE": 1e-3, "LOSS_TYPE": "grpo"}
    log = loop(cells, REWARDS=rewards, **small)["log"]
    paid = [row["reward"] for row in log]
    assert sum(paid[-2:]) / 2 > sum(paid[:2]) / 2 + 0.3, paid
    assert all(abs(row["policy_loss"]) < 1e-6 for row in log), "grpo: advantages add up to 0 in every group"
    assert log[0]["kl_loss"] == pytest.approx(0, abs=1e-6) and log[-1]["kl_loss"] > 1e-4
    assert all(row["clipped"] == 0 for row in log), "one update: the ratio is 1"


def test_the_loop_uses_its_parameters_and_updates_again_from_the_same_completions(cells):
    calls, plain = [], cells["grpo_loss"]

    def recorded(*tensors, **settings):
        calls.append(([one.detach().clone() for one in tensors], settings))
        return plain(*tensors, **settings)

    few = {"STEPS": 1, "PROMPTS_PER_STEP": 1, "NUM_GENERATIONS": 4, "MAX_COMPLETION_TOKENS": 16, "grpo_loss": recorded}
    how = {"TEMPERATURE": 0.7, "SCALE_REWARDS": "none", "LOSS_TYPE": "dr_grpo", "BETA": 0.3, "EPSILON": 0.11, "SEED": 1}
    names = loop(cells, NUM_ITERATIONS=2, **few, **how)
    (first, settings), (second, _) = calls[:2]
    assert settings == {"loss_type": "dr_grpo", "beta": 0.3, "epsilon": 0.11, "epsilon_high": 0.28, "max_tokens": 16}
    assert (
        torch.equal(first[0], first[1]) and torch.equal(first[1], second[1]) and not torch.equal(second[0], second[1])
    )
    seen = (*names["prompts"], names["ids"], names["mask"])
    with torch.no_grad():
        assert torch.allclose(first[0], cells["token_logps"](cells["load"](), *seen, 0.7), atol=1e-5)
    assert torch.allclose(first[4], names["rewards"] - names["rewards"].mean(), atol=1e-6)
    still = [loop(cells, NUM_ITERATIONS=n, LEARNING_RATE=0.0, **few, **how)["log"][0]["grad_norm"] for n in (1, 3)]
    assert still[0] == pytest.approx(still[1], rel=1e-4), "no gradient is left over from the update before"


# --------------------------------------------------------------------------- what the text says


def test_k3_times_the_ratio_has_value_and_gradient_of_the_divergence():
    """Exact means over a small vocabulary: k1's gradient is 0, k2's right, k3's that of KL(ref || policy)."""
    torch.manual_seed(0)
    weights, ref = (
        torch.randn(9, dtype=torch.double, requires_grad=True),
        torch.randn(9, dtype=torch.double).log_softmax(-1),
    )
    policy = weights.log_softmax(-1)
    drawn, ratio, gap = policy.detach().exp(), (policy - policy.detach()).exp(), ref - policy
    k3 = gap.exp() - gap - 1
    forward, backward = (policy.exp() * (policy - ref)).sum(), (ref.exp() * (ref - policy)).sum()

    def slope(value):
        return torch.autograd.grad(value, weights, retain_graph=True)[0]

    for value in (-gap, k3, k3 * ratio):
        assert torch.allclose((drawn * value).sum(), forward)
    assert slope((drawn * -gap).sum()).abs().max() < 1e-12
    assert torch.allclose(slope((drawn * gap**2 / 2).sum()), slope(forward))
    assert not torch.allclose((drawn * gap**2 / 2).sum(), forward, rtol=0.01)
    assert torch.allclose(slope((drawn * k3).sum()), slope(backward))
    assert torch.allclose(slope((drawn * k3 * ratio).sum()), slope(forward))
    assert not torch.allclose(slope(forward), slope(backward), rtol=0.1)


def test_each_exercise_begins_with_the_mistake_it_is_about_and_its_solution_is_right():
    begun = {
        "ADVANTAGES": "the advantages were not taken within the group",
        "MASK": "the mask also covers the prompt",
        "KL": "this is k1",
        "CLIP": "only the clipped product is there",
        "MEAN": "padding is counted",
    }
    attempts = [cell.source for cell in CELLS if "print(exercises." in cell.source]
    prose = "".join(cell.source for cell in CELLS if cell.cell_type == "markdown")
    solutions = re.findall(r"```python\n(.*?)```", prose, re.DOTALL)
    assert len(attempts) == len(solutions) == len(exercises.ALL)
    for source, solution, (name, sentence) in zip(attempts, solutions, begun.items()):
        function = re.search(r"def (my_\w+)", source).group(1)
        assert f"exercises.{name}.feedback({function})" in source
        exec(source.replace("print(", "("), scope := {"torch": torch, "exercises": exercises})
        assert getattr(exercises, name).feedback(scope[function]).startswith(f"Not yet: {sentence}")
        exec(solution, scope)
        assert getattr(exercises, name).feedback(scope[function]).startswith("Right: ")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("STEPS", 0, "STEPS is 0: it must be at least 1"),
        ("NUM_GENERATIONS", 1, "NUM_GENERATIONS is 1: it must be at least 2"),
        ("TEMPERATURE", 0, "TEMPERATURE is 0"),
        ("LOSS_TYPE", "ppo", "LOSS_TYPE is one of grpo, bnpo, dapo, dr_grpo"),
        ("COMPARE", [], "COMPARE a list of them"),
        ("COMPARE", "dapo", "COMPARE a list of them"),
        ("SCALE_REWARDS", "std", "it must be 'group', 'batch' or 'none'"),
    ],
)
def test_a_parameter_that_cannot_work_is_named_before_anything_is_loaded(tmp_path, name, value, said):
    exec(tagged("parameters")[0], names := {})
    names |= {"OUTPUTS": str(tmp_path), name: value}
    with pytest.raises(ValueError, match=re.escape(said)):
        exec(tagged("defines")[0], names)
