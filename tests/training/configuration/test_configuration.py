"""Configuration: where values come from, and that what is wrong is said before anything is done."""

import pickle
import re
from pathlib import Path

import pytest

from training import ConfigurationError, from_dict, parse_command_line
from training.configuration.arguments import SECTIONS

SAVED = Path(__file__).parent / "saved"


def test_flags_win_over_yaml_and_yaml_over_presets(tmp_path):
    config = tmp_path / "run.yaml"
    sections = "run: {output_dir: out, seed: 3}\nmodel: {experts: 4}\noptimizer: {learning_rate: 1e-3}\n"
    config.write_text(f"preset: paper/d512-E8\n{sections}")
    from_file = parse_command_line(["--config", str(config)])
    assert (from_file.model.d_model, from_file.model.experts, from_file.run.seed) == (512, 4, 3)
    assert from_file.optimizer.learning_rate == 1e-3  # YAML 1.1 reads 1e-3 as a text
    flags = ["--model.experts=2", "--run.compile", "--run.async_checkpoints=false", "--schedule.tokens", "1B", "4e9"]
    presets = ["--preset", "paper/d1024-E8", "selective-decay"]
    short_names = ["--push-to-hub", "hf://org", "--dry-run"]
    arguments = parse_command_line(["--config", str(config), *presets, *flags, *short_names])
    assert (arguments.model.d_model, arguments.model.experts) == (1024, 2)
    assert (arguments.run.compile, arguments.run.async_checkpoints) == (True, False)
    assert arguments.schedule.tokens == [10**9, 4 * 10**9]
    assert not arguments.optimizer.decay_all
    assert (arguments.run.push_to_hub, arguments.run.dry_run) == ("hf://org", True)


def test_null_stands_for_the_default():
    values = {"preset": "paper/d512-E8", "run": {"output_dir": "out"}, "model": {"experts": None}, "data": None}
    assert from_dict(values).model.experts == 1
    with pytest.raises(ConfigurationError, match="output_dir: ''; it must name a folder"):
        from_dict({"run": {"output_dir": None}})


@pytest.mark.parametrize("name", ["given", "defaults"])
def test_configurations_that_runs_have_saved_are_read_and_written_as_they_were(name, tmp_path):
    """`defaults` is the whole recipe of the paper; `given` has most fields changed."""
    arguments = parse_command_line(["--config", str(SAVED / f"{name}.yaml")])
    arguments.save(tmp_path / "config.yaml")
    assert (tmp_path / "config.yaml").read_text() == (SAVED / f"{name}.yaml").read_text()
    assert from_dict(arguments.to_dict()) == pickle.loads(pickle.dumps(arguments)) == arguments
    if name == "defaults":
        # Defaults that have changed since: runs go on with what they began with.
        since = {"run": {"compile": "auto"}, "model": {"attention_precision": "compute"}}
        for section in ({}, {"preset": "paper"}):
            now = from_dict({**section, "run": {"output_dir": "out"}}).with_capacity_group()
            assert now == arguments.replaced(**since)


def test_fields_of_earlier_versions_are_read_where_they_did_nothing(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("run: {output_dir: out, stop_hopeless: false}\n")
    assert parse_command_line(["--config", str(path)]) == parse_command_line(["--run.output_dir", "out"])
    path.write_text("run: {output_dir: out, stop_hopeless: true}\n")
    with pytest.raises(ConfigurationError, match=r"run.stop_hopeless: .*; this field was removed"):
        parse_command_line(["--config", str(path)])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model.expert", "8"], "model.expert: no such key; did you mean model.experts"),
        (["--modle.experts", "8"], "modle: no such key; did you mean model?"),
        (["--seed", "8"], "seed: no such key; did you mean run.seed"),
        (["--xyz"], "xyz: no such key; train.py --help"),
        (["stray"], "run.output_dir: ['out', 'stray']; it must be one value"),
        (["--model.experts", "0"], "model.experts: 0; it must be greater than 0"),
        (["--model.experts"], "model.experts: []; it must be one value"),
        (["--model.d_model", "100"], "model.d_model: 100; it must be a multiple of 64 unless"),
        (["--model.d_model", "512", "--model.n_heads", "7"], "model.d_model: 512; it must give each of the 7 heads"),
        (["--model.d_model", "6", "--model.n_heads", "2", "--model.n_blocks", "1"], "an even number of dimensions"),
        (["--run.precision", "fp8"], "run.precision: 'fp8'; it must be 'fp32' or 'bf16'"),
        (["--run.sweep", "a/b"], "run.sweep: 'a/b'; it must be letters"),
        (["--run.profile_steps", "5", "3"], "run.profile_steps: ['5', '3']; it must be two steps"),
        (["--schedule.tokens", "1Q"], "schedule.tokens: '1Q'; it must be a whole number"),
        (["--schedule.tokens", "1.5"], "schedule.tokens: 1.5; it must be a whole number of at least 0, such as"),
        (["--schedule.warmup_tokens", "-1"], "schedule.warmup_tokens: -1; it must be a whole number of at least 0"),
        (["--schedule.tokens", "100M"], "schedule.warmup_tokens: 130000000; it must be at most 79953920"),
        (["--schedule.decay_fraction", "1.5"], "schedule.decay_fraction: 1.5; it must lie between 0 and 1"),
        (["--schedule.batch_ramp", "128"], "schedule.batch_ramp: ['128']; it must be stages from_tokens:sequences"),
        (["--schedule.batch_ramp", "5:128"], "schedule.batch_ramp: the first stage starts at 5 tokens"),
        (["--schedule.batch_ramp", "0:128", "0:256"], "after the one before"),
        (["--schedule.batch_ramp", "0:0"], "at least 1"),
        (["--schedule.tokens", "600"], "schedule.tokens: 600; it must be at least 2 steps of 65536 tokens"),
        (["--run.micro_batch_sequences", "48"], "48; it must divide the batch of 512 sequences"),
        (["--run.expert_parallel", "2"], "run.expert_parallel: 2; it must divide the number of experts, 1"),
        (["--data.held_out_per_mille", "0"], "data.held_out_per_mille: 0; it must lie between 0 and 1000"),
        (["--optimizer.learning_rate", "nan"], "optimizer.learning_rate: nan; it must be a finite number"),
        (["--optimizer.learning_rate_law", "x"], "optimizer.learning_rate_law: 'x'; it must be code or paper, or"),
        (["--run.license", "apache2"], "run.license: 'apache2'; it must be a licence"),
        (["--preset", "papr"], "preset: no preset is named 'papr'; did you mean paper"),
        (["--preset", "paper/d1024-E64"], "did you mean paper/d1024-E1, "),  # all of that width
        (["--preset", "paper/d1408-E8"], "paper/d1408-b21-h11-E8"),
        (["--config", "missing.yaml"], "--config: 'missing.yaml' cannot be read: No such file"),
        (["--config"], "--config: expected one argument"),
        (["--config", "a.yaml", "--config", "b.yaml"], "--config: given more than once"),
        (["--preset", "paper", "--preset", "paper"], "--preset: given more than once"),
        (["--model.experts", "8", "--model.experts=4"], "--model.experts is given more than once; a list follows one"),
        (["--dry-run", "--run.dry_run", "false"], "--run.dry_run is given more than once"),
    ],
)
def test_bad_input_names_the_field_and_what_is_allowed(flags, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        parse_command_line(["--run.output_dir", "out", *flags])


def test_all_problems_are_reported_at_once():
    with pytest.raises(ConfigurationError) as caught:
        from_dict({"preset": "nothing", "model": {"experts": -1, "d_model": 65, "x": 1}, "optimizer": {"beta1": 2}})
    named = ("preset", "run.output_dir", "model.experts", "model.d_model", "model.x", "optimizer.beta1")
    assert len(str(caught.value).splitlines()) == 1 + len(named)
    assert all(f"\n  {name}: " in str(caught.value) for name in named)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "holds list; it must be a mapping"),
        ("a: [", "cannot be read: line 1, column 5: while parsing"),
        ("model: 3", "model: '3'; it must be a section"),
    ],
)
def test_yaml_that_is_no_configuration_is_refused(tmp_path, text, message):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        parse_command_line(["--config", str(tmp_path / "bad.yaml")])


WORDS = ("no", "on", "true", "True", "null", "~", "500:16", "0:128", "1e3", "0x10", "010", "1_000", "1.0", "0.10", "5")
WORDS += ("-1", "2B", "2026-01-01", "nan", ".inf", "1e400", "1" + "0" * 20, "9" * 40, "9223372036854775807", "auto")
FIELDS = ("run.output_dir", "run.seed", "run.progress", "run.compile", "run.eval_tokens", "run.law", "run.trackers")
FIELDS += ("data.text_column", "data.order_seed", "schedule.batch_ramp", "optimizer.epsilon", "model.capacity_factor")


@pytest.mark.parametrize("name", FIELDS)
def test_a_word_means_the_same_in_yaml_and_on_the_command_line(name, tmp_path):
    """It is what was typed, or is refused; nothing is read as YAML 1.1 has it."""
    section, _, field = name.partition(".")
    path = tmp_path / "run.yaml"
    out = [] if name == "run.output_dir" else ["--run.output_dir", "out"]
    for word in WORDS:
        values = []
        path.write_text(f"{section}: {{{field}: {word}}}")
        for flags in (["--config", str(path)], [f"--{name}", word]):
            try:
                values.append(getattr(getattr(parse_command_line([*flags, *out]), section), field))
            except ConfigurationError:
                values.append("refused")
        assert values[0] == values[1], word
        value = values[0]
        default = SECTIONS[section].model_fields[field].default
        if word == "null" and name != "run.output_dir":
            assert value == default
        elif value != "refused":
            assert type(value) in (type(default), str, bool)
            assert not isinstance(value, str) or value == word
            assert not isinstance(value, bool) or word.lower() == str(value).lower()
            assert not isinstance(value, float) or value == float(word)
            assert not isinstance(value, int) or value <= 2**63


def test_the_seeds_of_a_run_fit_into_torch():
    for seed in ("-1", "4294967296", "1" + "0" * 20, "1.5", "nan"):
        for name in ("run.seed", "data.order_seed"):
            with pytest.raises(ConfigurationError, match=f"{name}: {seed}; it must"):
                parse_command_line(["--run.output_dir", "out", f"--{name}", seed])


def test_keys_with_x_hold_what_other_keys_repeat(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("x-data: &data {text_column: words, order_seed: 3}\nrun: {output_dir: out}\ndata: *data\n")
    arguments = parse_command_line(["--config", str(path)])
    assert (arguments.data.text_column, arguments.data.order_seed) == ("words", 3)
    path.write_text("run: {output_dir: out, x-note: 1}\n")
    with pytest.raises(ConfigurationError, match=r"run\.x-note: no such key"):
        parse_command_line(["--config", str(path)])
    path.write_text("run:\n  output_dir: out\n  seed: 1\n  seed: 2\n")
    with pytest.raises(ConfigurationError, match=r"line 4: run\.seed occurs twice, first in line 3"):
        parse_command_line(["--config", str(path)])


def test_an_empty_section_leaves_those_of_presets(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("preset: paper/d1024-E8\nrun: {output_dir: out}\nmodel:\n# all commented out\n")
    assert parse_command_line(["--config", str(path)]).model.d_model == 1024


@pytest.mark.parametrize("value", [[["a"]], [None], [{"a": 1}], {"a": 1}])
def test_a_field_holds_words(value):
    for name in ("text_column", "train_tokens", "order_seed"):
        with pytest.raises(ConfigurationError, match=rf"data\.{name}: .*; it must be"):
            from_dict({"run": {"output_dir": "out"}, "data": {name: value}})


def test_help_describes_every_field(capsys):
    with pytest.raises(SystemExit) as caught:
        parse_command_line(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    for section, model in SECTIONS.items():
        for name, field in model.model_fields.items():
            assert f"--{section}.{name}" in shown
            assert field.description
    assert "[0:128 500000000:256 1000000000:512]" in shown


def test_a_tilde_is_the_home_folder_in_every_path(tmp_path, monkeypatch):
    """Paths of a YAML file, which no shell sees, and words that it leaves alone."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run.yaml").write_text(
        "run: {output_dir: ~/out, law: ~/law, push_to_hub: ~/hub}\n"
        "data: {dataset: ~/text, tokenizer: ~/tokenizer, cache_dir: ~/cache}\n"
        "optimizer: {learning_rate_law: code}\n"
    )
    for config in ("--config=~/run.yaml", f"--config={tmp_path}/run.yaml"):
        arguments = parse_command_line([config, "--data.cache_dir=~/other"])
        run, data = arguments.run, arguments.data
        paths = [run.output_dir, run.law, run.push_to_hub, data.dataset, data.tokenizer, data.cache_dir]
        names = ("out", "law", "hub", "text", "tokenizer", "other")
        assert paths == [str(tmp_path / name) for name in names]


def test_stages_of_a_ramp_have_micro_batches_of_their_own():
    """Of what each process has of a smaller batch; the largest batch is cut as the run says."""
    ramp = {"batch_ramp": ["0:16", "1M:64"], "tokens": ["4M"], "warmup_tokens": 0}
    settings = {"output_dir": "runs/ramp", "micro_batch_sequences": 8}
    run = from_dict({"schedule": ramp, "run": settings, "model": {"experts": 1}})
    for processes in (1, 2, 8):
        run.check_processes(processes)
    with pytest.raises(ValueError, match="cuts the batch of 64 sequences into a number of micro-batches that 16"):
        run.check_processes(16)
    with pytest.raises(ValueError, match="cuts the batch of 16 sequences"):
        run.replaced(run={"micro_batch_sequences": 2}).check_processes(32)
    with pytest.raises(ValueError, match="24; it must divide the batch of 64 sequences"):
        from_dict({"schedule": ramp, "run": {**settings, "micro_batch_sequences": 24}})
