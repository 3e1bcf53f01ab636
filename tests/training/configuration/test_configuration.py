"""Configuration: where values come from, and that what is wrong is said before anything is done."""

import argparse
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from training.configuration.arguments import SECTIONS, ConfigurationError, Count
from training.configuration.reading import from_dict, parse_command_line


@pytest.mark.parametrize(
    ("text", "value"),
    [("2000", 2000), ("2_000", 2000), ("2e6", 2_000_000), ("0.5B", 500_000_000), ("16k".upper(), 16_000)],
)
def test_counts_are_read(text, value):
    assert Count(text) == value


@pytest.mark.parametrize("text", ["", "-1", "1.5", "many", "1 2", "1e", "nan", "0x10", "1M tokens"])
def test_what_is_no_count_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        Count(text)


@given(st.integers(0, 10**15))
def test_counts_round_trip(value):
    assert Count(str(value)) == Count(value) == value


def test_flags_win_over_yaml_and_yaml_over_defaults(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("run: {output_dir: out, seed: 3}\nmodel: {experts: 8}\noptimizer: {learning_rate: 1e-3}\n")
    arguments = parse_command_line(["--config", str(config), "--model.experts=2", "--schedule.tokens", "1B", "4e9"])
    assert (arguments.run.seed, arguments.model.experts, arguments.model.d_model) == (3, 2, 512)
    assert arguments.schedule.tokens == [10**9, 4 * 10**9]
    assert arguments.optimizer.learning_rate == 1e-3  # YAML 1.1 reads 1e-3 as a text


def test_a_saved_configuration_is_read_back_as_it_was(tmp_path):
    arguments = from_dict({"run": {"output_dir": "out", "trackers": []}, "schedule": {"tokens": ["1B"]}})
    arguments.save(tmp_path / "config.yaml")
    assert parse_command_line(["--config", str(tmp_path / "config.yaml")]) == arguments
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["schedule"]["tokens"] == [10**9]


def test_the_defaults_are_the_papers_recipe():
    arguments = from_dict({"run": {"output_dir": "out"}})
    assert [(s.from_tokens, s.sequences) for s in arguments.schedule.stages()] == [
        (0, 128),
        (500_000_000, 256),
        (10**9, 512),
    ]
    assert arguments.schedule.warmup_tokens == 130_000_000
    assert arguments.schedule.decay_fraction == 0.2
    assert (arguments.optimizer.gradient_clip, arguments.optimizer.weight_decay) == (0.1, 0.1)
    assert (arguments.optimizer.beta1, arguments.optimizer.beta2, arguments.optimizer.epsilon) == (0.9, 0.999, 1e-8)
    assert (arguments.model.balance_loss, arguments.model.z_loss, arguments.model.capacity_factor) == (
        0.01,
        0.001,
        1.0,
    )
    assert (arguments.data.dataset, arguments.data.sequence_length) == ("HuggingFaceFW/fineweb-edu", 512)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model.expert", "8"], "model.expert: no such key; did you mean model.experts"),
        (["--modle.experts", "8"], "modle.experts: no such key"),
        (["--model.experts", "0"], "model.experts: 0; it must be greater than 0"),
        (["--model.experts", "eight"], "model.experts: invalid int value: 'eight'"),
        (["--model.experts"], "model.experts: expected one argument"),
        (["--model.d_model", "100"], "model.d_model: 100 is not a multiple of 64"),
        (["--model.d_model", "512", "--model.n_heads", "7"], "model.d_model: 512 is not divisible by n_heads 7"),
        (["--model.d_model", "6", "--model.n_heads", "2", "--model.n_blocks", "1"], "needs even"),
        (["--run.precision", "fp8"], "run.precision: invalid choice: 'fp8'"),
        (["--run.sweep", "a/b"], "run.sweep: 'a/b'"),
        (["--schedule.tokens", "1Q"], "'1Q' is not a count"),
        (["--schedule.tokens", "100M"], "schedule.warmup_tokens: 130000000"),
        (["--schedule.decay_fraction", "1.5"], "schedule.decay_fraction: 1.5; it must lie between 0 and 1"),
        (["--schedule.batch_ramp", "128"], "'128' is not a stage"),
        (["--run.micro_batch_sequences", "48"], "48 does not divide the batch of 128 sequences"),
        (["--optimizer.learning_rate", "nan"], "optimizer.learning_rate: nan"),
        (["--model.experts", "4", "stray"], "model: one value too many, 'stray'"),
        (["--config", "missing.yaml"], "--config: 'missing.yaml' does not exist"),
    ],
)
def test_bad_input_names_the_field_and_what_is_allowed(flags, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        parse_command_line(["--run.output_dir", "out", *flags])


def test_all_problems_are_reported_at_once():
    with pytest.raises(ConfigurationError) as caught:
        from_dict({"run": {"output_dir": "out"}, "model": {"experts": -1, "d_model": 65}, "optimizer": {"beta1": 2}})
    assert all(name in str(caught.value) for name in ("model.experts", "model.d_model", "optimizer.beta1"))


def test_yaml_that_is_no_configuration_is_refused(tmp_path):
    for text, message in [("[1, 2]", "holds list"), ("a: [", "is not YAML"), ("model: 3", "model: holds 3")]:
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(ConfigurationError, match=message):
            parse_command_line(["--config", str(tmp_path / "bad.yaml")])


def test_help_lists_every_field(capsys):
    with pytest.raises(SystemExit) as caught:
        parse_command_line(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"--{section}." in shown for section in SECTIONS)
    assert "--schedule.batch_ramp" in shown


def test_short_names_of_two_flags():
    words = ["--run.output_dir", "out", "--push-to-hub", "hf://org", "--dry-run"]
    run = parse_command_line(words).run
    assert (run.push_to_hub, run.dry_run) == ("hf://org", True)
