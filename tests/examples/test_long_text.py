"""A text is cut over devices, which train the model of one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples import long_text
from tests.examples.test_config import FOLDER

CONFIG = FOLDER / "v5e-16.yaml"
SMALL = """--dtype_policy float32 --length 256 --num_layers 2 --num_heads 2
    --hidden_dim 16 --file text --checkpoint_dir null --output_dir""".split()


def test_sequences_are_parts_of_the_file_and_the_next_bytes(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(bytes(range(245, 256)))
    dataset = long_text.sequences(str(path), 3)
    assert len(dataset) == 2
    found = [[x.tolist() for x in pair] for pair in dataset.as_numpy_iterator()]
    first, second = [245, 246, 247, 248], [249, 250, 251, 252]
    assert found == [[[x[:3]], [x[1:]]] for x in (first, second)]
    with pytest.raises(ValueError, match="two sequences of 6 bytes.*text of 11 bytes"):
        long_text.sequences(str(path), 5)


@pytest.mark.slow
def test_slices_train_what_one_device_trains(tmp_path, monkeypatch, uncompiled):
    """The settings are those of the TPU, with a small model on two logical CPUs."""
    two = tf.config.list_logical_devices("CPU")[:2]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: two)
    code = (long_text.pathlib.Path(long_text.__file__)).read_bytes()
    (tmp_path / "text").write_bytes(code[: 4 * 257])

    def run(strategy):
        flags = ["--strategy", strategy, "--epochs", "2"]
        return long_text.main(["--config", str(CONFIG), *flags, *SMALL, strategy])

    lengths, run_on = [], tf.distribute.MirroredStrategy.run

    def noted(self, fn, args=(), *more):
        found = self.experimental_local_results(args[0])
        lengths.extend(x.shape[1] for x in tf.nest.flatten(found))
        return run_on(self, fn, args, *more)

    monkeypatch.setattr(tf.distribute.MirroredStrategy, "run", noted)
    bits = run("mirrored")
    assert set(lengths) == {128}  # each device had a half of each sequence
    assert bits == pytest.approx(run("none"), rel=1e-5)
    ours, alone = (
        keras.models.load_model(f"{name}/model.keras") for name in ("mirrored", "none")
    )
    assert int(alone.optimizer.iterations) == 2 * 3
    for one, other in zip(ours.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
