"""Callbacks of a run, in addition to checkpoints."""

import time

import keras
import numpy as np

import keras_performer


def make(config, is_chief):
    """Returns the callbacks that `config` asks for."""
    chosen = [keras.callbacks.TerminateOnNaN(), SeedDropout(config.seed)]
    if config.every_n_steps and config.attention == "performer":
        chosen.append(keras_performer.RedrawFeatures(config.every_n_steps))
    if config.tensorboard_dir and is_chief:
        chosen.append(keras.callbacks.TensorBoard(config.tensorboard_dir))
    if config.max_minutes:
        chosen.append(StopAfter(config.max_minutes))
    return chosen


def steps_done(model):
    """Returns the number of optimizer steps done."""
    return int(model.optimizer.iterations.numpy())  # int() alone fails in a strategy


def epochs_done(model):
    """Returns the epoch at which `fit` begins, which `BackupAndRestore` has restored.

    Keras has no public name for this number.
    """
    return model._initial_epoch or 0


class StopAfter(keras.callbacks.Callback):
    """Ends training after `minutes`, at the end of a batch."""

    def __init__(self, minutes):
        super().__init__()
        self.minutes = minutes

    def on_train_begin(self, logs=None):
        self.end = time.monotonic() + 60 * self.minutes

    def on_train_batch_end(self, batch, logs=None):
        if time.monotonic() > self.end:
            print(f"\nStopped after max_minutes={self.minutes}.")
            self.model.stop_training = True


class SeedDropout(keras.callbacks.Callback):
    """Seeds dropout before each epoch, from the seed and the number of steps done.

    Keras does not save the state of dropout's seeds, so a resumed run would repeat the
    dropout of its first steps.
    """

    def __init__(self, seed):
        super().__init__()
        self.seed = seed

    def on_epoch_begin(self, epoch, logs=None):
        step = steps_done(self.model)
        states = [v for v in self.model.variables if v.name == "seed_generator_state"]
        for index, state in enumerate(states):
            words = np.random.SeedSequence((self.seed, step, index)).generate_state(1)
            state.assign([words[0], 0])  # Keras counts calls in the second entry


class Curve(keras.callbacks.Callback):
    """Collects bits per dimension against optimizer steps."""

    def __init__(self):
        super().__init__()
        self.training, self.held_out = [], []

    def on_epoch_end(self, epoch, logs=None):
        step = steps_done(self.model)
        self.training.append((step, logs["bits_per_dim"]))
        self.held_out.append((step, logs["val_bits_per_dim"]))
