"""What the trainer made of the settings that were asked for."""

from lab.train import settings_check
from lab.train.settings_check import ABSENT, CHANGED, effective_settings


def made(config_class=None, **settings):
    from trl import GRPOConfig

    return (config_class or GRPOConfig)(**{"use_cpu": True, **settings})


def test_equal_values_in_another_guise_are_not_changed(tmp_path):
    asked = dict(
        output_dir=tmp_path,
        learning_rate=1,
        lr_scheduler_type="cosine",
        report_to="none",
        scale_rewards=False,
        bf16=False,
        reward_weights=(1, 0.5),
        logging_steps=1.0,
        debug="",
        use_cpu=True,
        eval_strategy="no",
        optim="adamw_torch_fused",
    )
    table = effective_settings(asked, made(**{**asked, "output_dir": str(tmp_path)}))
    assert set(asked) <= set(table.index) and set(table.loc[list(asked), "changed"]) == {""}
    assert table.loc["lr_scheduler_type"].tolist() == ["cosine", "cosine", "linear", ""]


def test_a_value_that_was_changed_is_marked(tmp_path):
    asked = dict(output_dir=str(tmp_path), bf16=False, learning_rate=1e-5, beta=0.02)
    args = made(**asked)
    args.beta = 0.0
    table = effective_settings(asked, args)
    assert table.loc["beta"].tolist() == ["0.02", "0.0", "0.0", CHANGED] and table.loc["learning_rate", "changed"] == ""


def test_a_value_that_nobody_asked_for_is_listed_where_it_is_not_trl_s_own(tmp_path):
    asked = dict(output_dir=str(tmp_path), bf16=False)
    quiet = effective_settings(asked, made(**asked))
    assert set(quiet.index) - set(asked) <= {
        "use_cpu",
        "gradient_checkpointing_kwargs",
    }  # Unsloth's CPU backend sets both
    args = made(**asked)
    args.weight_decay = 0.001
    assert effective_settings(asked, args).loc["weight_decay"].tolist() == [
        "–",
        "0.001",
        "0.0",
        CHANGED,
    ]


def test_defaults_are_trl_s_own_also_where_unsloth_replaced_the_class(tmp_path, monkeypatch, unsloth_config):
    import trl

    replaced, own = unsloth_config, trl.GRPOConfig
    asked = {"output_dir": str(tmp_path), "num_generations": 4, "learnign_rate": 1.0}
    table = effective_settings(asked, made(replaced, **asked))
    assert settings_check.pristine(replaced) is settings_check.pristine(own) is own
    assert table.loc["per_device_train_batch_size"].tolist() == ["–", "4", "8", CHANGED]
    assert table.loc["seed"].tolist() == ["–", "3407", "42", CHANGED]
    assert table.loc["learnign_rate"].tolist() == ["1.0", ABSENT, "–", CHANGED]
    monkeypatch.setattr(trl, "GRPOConfig", replaced)
    assert settings_check.trl_defaults()["per_device_train_batch_size"] == 8
    assert settings_check.live_defaults()["per_device_train_batch_size"] == 4  # what a batch left open would get there


def test_a_token_is_not_shown(tmp_path):
    asked = dict(output_dir=str(tmp_path), hub_token="secret")
    assert not effective_settings(asked, made(**asked)).isin(["secret"]).any().any()
