"""The forecast in a real Trainer: three lines added, what it logs, what it keeps, and what it refuses."""

import json

import pytest
import torch
import transformers

import training


@pytest.fixture
def trainer(tmp_path):
    """A function: a Trainer of a tiny model on sequences that can be learnt."""
    rows = torch.arange(32).repeat(64, 2)[:, :32].add(torch.arange(64)[:, None]) % 32

    def build(name, seed=0, callbacks=(), steps=60, **changes):
        torch.manual_seed(seed)
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=32, n_positions=32, n_embd=16, n_layer=1, n_head=2)
        )
        settings = {"learning_rate": 3e-3, "logging_steps": 2, "per_device_train_batch_size": 4, "disable_tqdm": True}
        places = {"output_dir": str(tmp_path / name), "report_to": [], "use_cpu": True, "save_strategy": "no"}
        arguments = transformers.TrainingArguments(
            max_steps=steps, seed=seed, eval_strategy="no", **settings | places | changes
        )
        data = [{"input_ids": row, "labels": row} for row in rows]
        return transformers.Trainer(
            model, arguments, train_dataset=data, eval_dataset=data[:8], callbacks=[*callbacks]
        )

    return build


def track_logs():
    """Return a callback that stands for a tracker, which the Trainer asks before the callbacks of users."""

    # The Trainer imports all packages that it finds: here, and not while tests are collected.
    class Seen(transformers.TrainerCallback):
        def __init__(self):
            self.logs = []

        def on_log(self, args, state, control, logs=None, **kwargs):
            self.logs.append(dict(logs))

    return Seen()


def curve_file(tmp_path, name):
    """The file of the curve of a run."""
    (path,) = (tmp_path / "curves").glob(f"{name}-*.json")
    return path


def test_runs_of_one_name_in_two_folders_keep_a_curve_each(trainer, tmp_path):
    for folder in ("a", "b", "a"):
        trainer(f"{folder}/run", callbacks=[training.FinalLossCallback(curves=tmp_path / "curves")], steps=4).train()
    assert len([*(tmp_path / "curves").iterdir()]) == 2


def test_the_second_of_two_identical_runs_is_on_its_track(trainer, tmp_path):
    """Even at a constant rate, under which the form of these curves misses them."""
    settings = {"seed": 3, "steps": 120, "logging_steps": 1, "lr_scheduler_type": "constant"}
    for name in ("first", "second"):
        callback = training.FinalLossCallback(curves=tmp_path / "curves")
        run = trainer(name, callbacks=[callback], **settings)
        run.train()
        assert not any("off_track" in entry for entry in run.state.log_history)
    assert callback.estimate.lines > 10
    assert callback.estimate.ahead == pytest.approx(0.0, abs=1e-9)


def test_a_run_whose_last_evaluation_is_not_finite_adds_no_curve(trainer, tmp_path, caplog):
    class Broken(transformers.TrainerCallback):
        def on_evaluate(self, args, state, control, **kwargs):
            state.log_history[-1]["eval_loss"] = float("nan")

    callbacks = [Broken(), training.FinalLossCallback(curves=tmp_path / "curves")]
    run = trainer("broken", callbacks=callbacks, steps=6)
    run.args.eval_strategy = "steps"
    run.args.eval_steps = 6
    run.train()
    assert not (tmp_path / "curves").exists()


def test_three_lines_tell_the_final_loss_of_a_real_run(trainer, tmp_path):
    for seed in range(4):
        trainer(f"run{seed}", seed, [training.FinalLossCallback(curves=tmp_path / "curves")]).train()
    kept = [json.loads(path.read_text()) for path in sorted((tmp_path / "curves").glob("*.json"))]
    assert [curve["trunk"].partition("-")[0] for curve in kept] == ["run0", "run1", "run2", "run3"]
    seen = track_logs()
    run = trainer("new", 9, [seen])
    run.callback_handler.callbacks.insert(0, training.FinalLossCallback(curves=tmp_path / "curves"))
    run.train()
    told = [entry for entry in run.state.log_history if "forecast_loss" in entry]
    assert told[0]["step"] >= 6
    assert sum("forecast_loss" in logs for logs in seen.logs) == len(told)
    final = json.loads(curve_file(tmp_path, "new").read_text())["final"]
    half = next(entry for entry in told if entry["step"] >= 30)
    assert half["forecast_low"] < final < half["forecast_high"]
    assert abs(half["forecast_loss"] - final) < abs(half["loss"] - final)


def test_a_run_that_is_stopped_keeps_no_curve_and_one_that_resumes_says_the_same(trainer, tmp_path):
    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 40

    trainer("other", 1, [training.FinalLossCallback(curves=tmp_path / "curves")]).train()
    saved = {"save_strategy": "steps", "save_steps": 20}
    whole = trainer("whole", 2, [training.FinalLossCallback(curves=tmp_path / "curves")], **saved)
    whole.train()
    curve_file(tmp_path, "whole").unlink()
    part = trainer("part", 2, [training.FinalLossCallback(curves=tmp_path / "curves"), Stop()], **saved)
    part.train()
    assert len([*(tmp_path / "curves").iterdir()]) == 1
    resumed = trainer("part", 2, [training.FinalLossCallback(curves=tmp_path / "curves")], **saved)
    resumed.train(resume_from_checkpoint=True)
    say = [[e["forecast_loss"] for e in run.state.log_history if "forecast_loss" in e] for run in (whole, resumed)]
    assert say[0] == pytest.approx(say[1], rel=1e-9)
    assert curve_file(tmp_path, "part").exists()


def test_a_loss_that_is_not_finite_and_a_run_without_logs_end_no_training(trainer, tmp_path):
    class Infinite(transformers.TrainerCallback):
        def on_log(self, args, state, control, **kwargs):
            state.log_history[-1]["loss"] = float("inf")

    for name, callbacks, every in (("infinite", [Infinite()], 2), ("silent", [], 100)):
        callbacks += [training.FinalLossCallback(curves=tmp_path / "curves")]
        trainer(name, callbacks=callbacks, steps=6, logging_steps=every).train()
        assert not (tmp_path / "curves").exists()


def test_a_run_that_diverges_adds_no_curve(trainer, tmp_path, caplog):
    """Trainer logs a loss of 0 for NaN."""
    callback = training.FinalLossCallback(curves=tmp_path / "curves")
    trainer("bad", callbacks=[callback], steps=10, learning_rate=1e30).train()
    assert not (tmp_path / "curves").exists()
    assert "bad are not finite and positive: it diverged" in caplog.text


def test_a_law_needs_tokens_and_curves_need_one_unit(trainer, tmp_path):
    with pytest.raises(ValueError, match="tokens_per_step must be given with a law"):
        trainer("a", callbacks=[training.FinalLossCallback(law="published")], steps=2).train()
    told = trainer("b", callbacks=[training.FinalLossCallback(law="published", tokens_per_step=128)])
    told.train()
    assert any("forecast_loss" in entry for entry in told.state.log_history)
    trainer("c", callbacks=[training.FinalLossCallback(curves=tmp_path / "curves")], steps=4).train()
    with pytest.raises(ValueError, match=r"c-\w+\.json counts steps, and this run tokens"):
        trainer("d", callbacks=[training.FinalLossCallback(tmp_path / "curves", tokens_per_step=128)], steps=2).train()
    kept = json.loads(curve_file(tmp_path, "c").read_text())
    assert kept["rates"] == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0]), "as the Trainer's scheduler plans them"
