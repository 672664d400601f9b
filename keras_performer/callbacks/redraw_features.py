"""Fresh random features during training."""

import keras

from keras_performer.layers import PerformerAttention, arguments


@keras.saving.register_keras_serializable(package="keras_performer")
class RedrawFeatures(keras.callbacks.Callback):
    """Redraws the random features of every `PerformerAttention` in the model.

    It counts optimizer steps (`optimizer.iterations`), not batches, so that it is
    right under `steps_per_execution` above 1, gradient accumulation and resumed
    training. The features after step s are redraw number `s // every_n_steps` of each
    layer, counted from where a fresh optimizer starts. If training starts at a step
    that should have seen more redraws than the layer has, they are made up for first.

    Where one execution passes several redraws, only the last is drawn; the count and
    the sequence stay the same.

    Args:
        every_n_steps: int, optimizer steps between redraws. 1000 as in the paper's
            experiments.
        verbose: 0 or 1, whether to print each redraw.

    Example:

    >>> RedrawFeatures(every_n_steps=100).every_n_steps
    100

    Reference:
        arXiv 2009.14794, section 4.3 (resampling of features).
    """

    def __init__(self, every_n_steps=1000, verbose=0):
        super().__init__()
        self.every_n_steps = arguments.positive_int("every_n_steps", every_n_steps)
        self.verbose = verbose
        self._redraws = None

    def on_train_begin(self, logs=None):
        self._redraws = None

    def on_train_batch_begin(self, batch, logs=None):
        # not in on_train_begin: another callback may restore a checkpoint there
        if self._redraws is None:
            self._redraws = self._redraws_due()
            for layer in self._layers():
                # a layer that is built with the first batch starts its sequence
                made = _as_int(layer.redraw_count) if layer.built else 0
                if self._redraws > made:
                    self._redraw(layer, self._redraws - made)

    def on_train_batch_end(self, batch, logs=None):
        passed = self._redraws_due() - self._redraws
        if passed > 0:
            self._redraws += passed
            for layer in self._layers():
                self._redraw(layer, passed)

    def get_config(self):
        return {"every_n_steps": self.every_n_steps, "verbose": self.verbose}

    @classmethod
    def from_config(cls, config):
        return cls(**config)

    def _redraws_due(self):
        return _as_int(self.model.optimizer.iterations) // self.every_n_steps

    def _layers(self):
        layers = [
            layer
            for layer in self.model._flatten_layers()
            if isinstance(layer, PerformerAttention)
            and layer.num_random_features is not None
        ]
        if not layers:
            raise ValueError(
                "RedrawFeatures needs a model with at least one PerformerAttention "
                "that has random features. Received: "
                f"model={self.model.name!r} without any."
            )
        return layers

    def _redraw(self, layer, num_redraws):
        layer.redraw_features(num_redraws)
        if self.verbose:
            print(f"\nRedrew the random features of {layer.path}.")


def _as_int(variable):
    return int(keras.ops.convert_to_numpy(variable))
