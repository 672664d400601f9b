"""The whole example at small size, as a new user runs it."""

import dataclasses
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples.imagenet64 import train
from examples.imagenet64.config import Config

SMALL = """--num_layers 1 --num_heads 1 --hidden_dim 6 --intermediate_dim 4
    --num_random_features 4 --batch_size 1 --held_out_images 2 --num_samples 1
    --num_completions 1 --warmup_steps 1 --every_n_steps 2 --output_dir out
    --control false""".split()
# For tests that do not depend on attention: tracing these graphs takes a fraction of
# the demo's time.
PLAIN = "--feature_map relu --exact_window null"
NO_ATTENTION = "--attention none --num_samples 0 --num_completions 0"


def run(*flags):
    return train.main([*SMALL, *" ".join(flags).split()])


@pytest.mark.slow
def test_the_example_trains_generates_and_writes(
    tmp_path, capsys, monkeypatch, uncompiled, assert_drawn
):
    # tests of generation sample all 12,288 sub-pixels
    monkeypatch.setattr(
        train.keras_performer,
        "generate",
        lambda model, prompt, length, **_: np.resize(prompt, (len(prompt), length)),
    )
    curves, save_curve = [], train.report.save_curve

    def note_and_save(path, training, held_out, baselines):
        curves.extend([training, held_out])
        save_curve(path, training, held_out, baselines)

    monkeypatch.setattr(train.report, "save_curve", note_and_save)
    steps = "--num_steps 4 --steps_per_epoch 2"
    results = run(PLAIN, steps, "--control true")
    training, held_out = curves
    assert [step for step, _ in training] == [step for step, _ in held_out] == [2, 4]
    assert held_out[-1][1] == pytest.approx(results["this model"], abs=1e-5)
    others = {"without attention", "uniform", "histogram", "png"}
    assert set(results) == {"this model", *others}
    assert 1.0 < results["this model"] < results["histogram"]
    printed = capsys.readouterr().out
    assert "bits_per_dim" in printed and "scikit-learn" in printed
    assert f"{results['this model']:.3f}" in (tmp_path / "out/table.txt").read_text()
    assert_drawn("out/pictures.png")
    assert_drawn("out/curve.png")
    assert json.loads((tmp_path / "out/config.json").read_text())["num_steps"] == 4
    model = keras.models.load_model(tmp_path / "out/model.keras")
    assert int(model.optimizer.iterations) == 4
    assert int(model.blocks[0].attention.redraw_count) == 2
    # the control is the run without attention
    alone = run(NO_ATTENTION, steps, "--output_dir alone")
    expected = pytest.approx(alone["this model"], abs=1e-5)
    assert results["without attention"] == expected


def sequences(count, start_step=0, replicas=1, **settings):
    config = Config(**settings)
    images = dataclasses.replace(train.data.load(config), start_step=start_step)
    context = tf.distribute.InputContext(num_replicas_in_sync=replicas)
    batches = train.training_sequences(images, config, context)
    return np.array(list(batches.take(count).as_numpy_iterator()))


def test_a_step_trains_on_some_rows_of_its_images():
    settings = dict(batch_size=2, training_rows=5)
    whole = sequences(6, **settings)
    images = train.data.load(Config(**settings)).train.take(6).as_numpy_iterator()
    found = set()
    for batch, (inputs, targets) in zip(images, whole, strict=True):
        rows = targets.reshape(2, 5, 64, 3)
        first, *_ = [k for k in range(60) if (batch[:, k : k + 5] == rows).all()]
        found.add(first)
        np.testing.assert_array_equal(inputs[:, 1:], targets[:, :-1])
        assert (inputs[:, 0] == 0).all()
    assert len(found) > 3  # each step has other rows
    later = sequences(2, start_step=4, **settings)
    np.testing.assert_array_equal(later, whole[4:])
    # replicas take parts of a batch, with the same rows
    parts = sequences(4, replicas=2, **settings)[:, :, 0]
    parts = parts.reshape(2, 2, *parts.shape[1:]).swapaxes(1, 2)
    np.testing.assert_array_equal(parts, whole[:2])


def test_noise_is_added_to_what_is_read_and_not_to_what_is_predicted():
    settings = dict(batch_size=2, training_rows=64)
    plain, noisy = (sequences(9, input_noise=x, **settings) for x in (0.0, 16.0))
    np.testing.assert_array_equal(noisy[:, 1], plain[:, 1])
    assert noisy.min() >= 0 and noisy.max() <= 255
    deviations = []
    for image, other in zip(*(x[:, 0].reshape(18, -1) for x in (plain, noisy))):
        inside = (image > 80) & (image < 175)  # where no noise is clipped
        noise = (other - image)[inside].astype(float)
        assert abs(noise.mean()) < 5 * noise.std() / np.sqrt(noise.size) + 1e-9
        deviations.append(noise.std())
    # uniform between 0 and 16: mean 8, standard error 16 / sqrt(12 * 18)
    assert abs(np.mean(deviations) - 8) < 4 * 16 / np.sqrt(12 * 18)
    assert len(set(deviations)) == 18 and max(deviations) < 16.5
    later = sequences(2, start_step=7, input_noise=16.0, **settings)
    np.testing.assert_array_equal(later, noisy[7:])


def test_a_copy_on_one_device_predicts_what_the_shared_model_does():
    config = train.parse([*SMALL, "--strategy", "mirrored", "--batch_size", "4"])
    with train.strategies.make(config).scope():
        shared = train.image_model.make(config)
    copy = train.on_one_device(shared, config)
    tokens = np.random.default_rng(0).integers(0, 256, (4, 50))
    np.testing.assert_allclose(copy(tokens), shared(tokens), rtol=1e-5, atol=1e-5)
    assert not isinstance(copy.weights[0].value, tf.distribute.DistributedValues)


@pytest.mark.slow
def test_checkpoints_on_a_remote_file_system(uncompiled):
    flags = f"{NO_ATTENTION} --num_steps 2 --steps_per_epoch 2"
    flags += " --checkpoint_dir ram://run/checkpoint"
    first = run(flags)
    weights = "ram://run/checkpoint/latest.weights.h5"
    written = tf.io.gfile.stat(weights).mtime_nsec
    assert run(flags, "--resume true") == first  # no steps are left
    with pytest.raises(ValueError, match="resume must be True if checkpoint_dir exi"):
        run(flags)
    assert tf.io.gfile.stat(weights).mtime_nsec == written


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("--data_dir nowhere", "There is no folder nowhere"),
        ("--feature_map bogus", "bogus"),
        ("--batch_size 3 --held_out_images 2", "batch_size must be at most"),
        ("--strategy mirrored", "batch_size must be a multiple"),
        ("--resume true", "hidden_dim=16.* Received: hidden_dim=6$"),
    ],
)
def test_a_mistyped_command_deletes_no_checkpoint(tmp_path, mistake, message):
    settings = '{"hidden_dim": 16}'
    old = {"config.json": settings, "checkpoint/latest.weights.h5": "?"}
    old["checkpoint/config.json"] = settings
    (tmp_path / "out/checkpoint").mkdir(parents=True)
    for name, text in old.items():
        (tmp_path / "out" / name).write_text(text)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        run(mistake)
    assert {name: (tmp_path / "out" / name).read_text() for name in old} == old


class Interrupted(Exception):
    pass


@pytest.mark.slow
def test_a_resumed_run_is_the_run_that_was_not_interrupted(
    tmp_path, monkeypatch, uncompiled
):
    # with recompute, each dropout layer samples several times in a step
    flags = f"""{NO_ATTENTION} --num_steps 6 --steps_per_epoch 2
        --dropout 0.5 --recompute network"""
    whole = run(flags)

    class Interrupt(train.callbacks.Curve):
        def on_train_batch_end(self, batch, logs=None):
            if train.callbacks.steps_done(self.model) == 5:
                raise Interrupted

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(train.callbacks, "Curve", Interrupt)
        run(flags, "--output_dir interrupted")
    # as if killed during a write: the run then uses the checkpoint before
    weights = tmp_path / "interrupted/checkpoint/latest.weights.h5"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    resumed = run(flags, "--output_dir interrupted --resume true")
    assert resumed["this model"] == pytest.approx(whole["this model"], abs=1e-6)
    weights = [
        keras.models.load_model(f"{folder}/model.keras").get_weights()
        for folder in ("interrupted", "out")
    ]
    for continued, uninterrupted in zip(*weights, strict=True):
        np.testing.assert_allclose(continued, uninterrupted, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_to_all_its_steps(uncompiled):
    run(NO_ATTENTION, "--max_minutes 1e-4 --num_steps 4 --steps_per_epoch 2")
    # a second run, and one with epochs of another length
    for steps, per_epoch, done in (4, 2, 5), (8, 3, 8):
        sizes = f"--num_steps {steps} --steps_per_epoch {per_epoch}"
        run(NO_ATTENTION, "--max_minutes null --resume true", sizes)
        model = keras.models.load_model("out/model.keras")
        assert int(model.optimizer.iterations) == done
