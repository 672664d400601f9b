"""Keras callback that redraws random features during training."""

import typing
import warnings

import keras

from keras_performer.layers import PerformerAttention, arguments
from keras_performer.layers.keras_privates import all_layers

__all__ = ["RedrawFeatures"]

# Steps that loss scaling may skip until its scale fits. The scale begins with 2**15 and
# halves at each skipped step; no gradient needs a scale of 2**-49.
_SKIPPED_STEPS = 64


@keras.saving.register_keras_serializable(package="keras_performer")
class RedrawFeatures(keras.callbacks.Callback):
    """Callback that redraws the random features of a model during training.

    It redraws every `PerformerAttention` in the model every `every_n_steps` optimizer
    steps. Frozen layers (`trainable=False`), and layers that have no random features or
    whose features train, stay as they are.

    It counts optimizer steps (`optimizer.iterations`), not batches, so
    `steps_per_execution` above 1, gradient accumulation and resumed training give the
    same features. After step s each layer has redraw number `s // every_n_steps`; with
    a new optimizer, this number adds to the redraws that the layer already had. If a
    resumed model lags behind, the callback catches up when training starts; if you
    restore a checkpoint during training, at the next redraw. If one execution spans
    several redraws, only the last one is sampled.

    The model must be compiled with the optimizer that trains it. The callback warns at
    the end of an epoch if `optimizer.iterations` should have moved and has not.

    Args:
        every_n_steps: int, optimizer steps between redraws. The paper's experiments use
            1,000. Defaults to `1000`.
        verbose: 0 or 1, whether to print each redraw. Defaults to `0`.

    Raises:
        ValueError: in training, if the model has no features to redraw or no optimizer,
            or is not built although its optimizer has made steps.

    Example:

    >>> RedrawFeatures(every_n_steps=100).every_n_steps
    100

    Reference:
        arXiv 2009.14794, section 4.3 (resampling of features).
    """

    def __init__(
        self, every_n_steps: int = 1000, verbose: typing.Literal[0, 1] = 0
    ) -> None:
        super().__init__()
        self.every_n_steps = arguments.positive_int("every_n_steps", every_n_steps)
        self.verbose = arguments.one_of("verbose", verbose, (0, 1))
        self._start()

    def on_train_begin(self, logs=None):
        self._start()

    def on_train_batch_begin(self, batch, logs=None):
        # not in on_train_begin: another callback may restore a checkpoint there
        if self._redraws is None:
            self._first_step = self._step()
            self._redraws = self._first_step // self.every_n_steps
            for layer in self._layers():
                if self._redraws and not layer.built:
                    raise ValueError(
                        f"After {self._first_step} steps of the optimizer the features "
                        "must be redrawn before training, which needs a built layer: "
                        "build the model first, for example with "
                        "model.build(input_shape). Received: layer "
                        f"{layer.name!r} with built=False"
                    )
                made = self._make_up(layer, self._redraws)
                self._ahead[layer] = max(made - self._redraws, 0)

    def on_train_batch_end(self, batch, logs=None):
        self.on_train_batch_begin(batch)  # custom loops may leave this call out
        self._batches += 1
        redraws = self._step() // self.every_n_steps
        if redraws != self._redraws:  # fewer if an earlier step was restored
            self._redraws = redraws
            for layer in self._layers():
                self._make_up(layer, redraws + self._ahead.get(layer, 0))

    def on_epoch_end(self, epoch, logs=None):
        few = self._batches < self._batches_of_a_step()
        if few or self._step() != self._first_step:
            return
        warnings.warn(
            "RedrawFeatures counts model.optimizer.iterations, which did not move in "
            f"{self._batches} batches: it cannot redraw. Compile the model with the "
            "optimizer that trains it, or call redraw_features of the layers yourself.",
            stacklevel=2,
        )
        self._batches = float("-inf")  # once is enough

    def get_config(self):
        return {"every_n_steps": self.every_n_steps, "verbose": self.verbose}

    @classmethod
    def from_config(cls, config):
        return cls(**config)

    def _start(self):
        self._redraws, self._first_step, self._batches = None, None, 0
        self._ahead = {}  # redraws of each layer in excess of the optimizer's steps

    def _step(self):
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is None:
            raise ValueError(
                "RedrawFeatures counts the steps of the model's optimizer: compile the "
                f"model with one. Received: model={self.model.name!r} with "
                "optimizer=None"
            )
        return _as_int(optimizer.iterations)

    def _batches_of_a_step(self):
        """Returns the number of batches after which `iterations` must have moved."""
        optimizer, attempts = self.model.optimizer, 1
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            optimizer, attempts = optimizer.inner_optimizer, 1 + _SKIPPED_STEPS
        return attempts * (optimizer.gradient_accumulation_steps or 1)

    def _layers(self):
        layers = [
            layer
            for layer in all_layers(self.model)
            if isinstance(layer, PerformerAttention)
            and layer.trainable
            and layer.num_random_features is not None
            and not layer.feature_map.trainable
        ]
        if not layers:
            raise ValueError(
                "RedrawFeatures needs a model with at least one PerformerAttention "
                "that is not frozen and whose random features do not train: leave the "
                f"callback out. Received: model={self.model.name!r} without any."
            )
        return layers

    def _make_up(self, layer, wanted):
        """Redraws a layer up to redraw number `wanted`; returns its number before.

        The number of a layer falls when its earlier weights are restored.
        """
        # a layer that the first batch will build starts with redraw 0
        made = _as_int(layer.redraw_count) if layer.built else 0
        if wanted > made:
            layer.redraw_features(wanted - made)
            if self.verbose:
                print(f"\nRedrew the random features of {layer.path}.")
        return made


def _as_int(variable):
    return int(keras.ops.convert_to_numpy(variable))
