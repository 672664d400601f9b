"""Keras' training and evaluation steps with a loss that is computed in chunks."""

import typing

import keras
import tensorflow as tf

from keras_performer.layers.keras_privates import (
    additional_loss,
    all_layers,
    compile_options,
    implicit_mask,
    set_implicit_mask,
    wrapped_function,
)
from keras_performer.ops.slices import current_slices
from keras_performer.recompute import passes


class WithTargets(typing.NamedTuple):
    """Inputs and targets for a model that returns losses and metrics, not outputs."""

    inputs: tf.Tensor
    targets: tf.Tensor


class TokenTraining(keras.Model):
    """Model whose `fit` and `evaluate` compute outputs in chunks, with `recompute`.

    With `recompute` the outputs, such as logits `(B, T, vocabulary_size)`, exist for
    one chunk of the sequence at a time. Keras' own steps get the loss and the metrics
    of each token instead.
    """

    def make_train_function(self, force=False):
        """Makes the function for `fit`, after the variables that the step needs.

        Keras would make those of optimizer and metrics in the first step, and
        TensorFlow traces a function twice if it makes variables.
        """
        if all(layer.built for layer in all_layers(self)):
            optimizer = self.optimizer
            if optimizer is not None and not optimizer.built:
                optimizer.build(self.trainable_variables)
            if _takes_ids(self.loss):
                self._build_metrics_of_ids()
        return super().make_train_function(force)

    def train_step(self, data):
        return super().train_step(self._with_targets(data))

    def test_step(self, data):
        return super().test_step(self._with_targets(data))

    def _with_targets(self, data):
        if self.recompute is None:
            return data
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if y is None or tf.nest.is_nested(y):
            raise ValueError(
                f"With recompute, y must be one tensor of targets. Received: y={y!r}"
            )
        return WithTargets(x, y), y, sample_weight

    def token_values(self, inputs, targets, training):
        """Computes loss and metrics of each token: `TokenValues` of shape `(B, T)`."""
        if not inputs.shape[:2].is_compatible_with(targets.shape[:2]):
            raise ValueError(
                "With recompute, y must have a target for each token of the inputs, "
                f"shape {(*inputs.shape, '...')}. Received: y of shape "
                f"{tuple(targets.shape)}. Pad or cut both to one length."
            )
        self._build_metrics(targets, self.compute_output_shape(inputs.shape))
        values = passes.token_values(self, _Measure(self), inputs, targets, training)
        if tf.is_tensor(values.mask):
            set_implicit_mask(values.loss, tf.cast(values.mask, "bool"))
        return values

    def _build_metrics_of_ids(self):
        """Builds metrics before data come: only the ranks of ids and outputs matter."""
        try:
            outputs = self.compute_output_shape((None, None))
        except NotImplementedError:  # not every head has this method
            return
        self._build_metrics(keras.KerasTensor(outputs[:-1], "int32"), outputs)

    def _build_metrics(self, targets, output_shape):
        """Builds metrics, as Keras does when it first sees outputs."""
        for metric in self.metrics:
            if not getattr(metric, "built", True):
                metric.build(targets, keras.KerasTensor(output_shape))

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        if current_slices() is not None:
            _check_means(self.loss, y_pred)
        if not isinstance(y_pred, TokenValues):
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        loss = _reduced(_loss(self), y_pred.loss, sample_weight)
        more = [additional_loss(self, x) for x in self.losses]
        return tf.add_n([loss, *(tf.cast(x, loss.dtype) for x in more)])

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        if not isinstance(y_pred, TokenValues):
            return super().compute_metrics(x, y, y_pred, sample_weight)
        for metric, values in zip(_metrics(self), y_pred.metrics):
            function, _ = wrapped_function(metric)
            if isinstance(function, keras.losses.Loss):
                values = _reduced(function, values, None)
            keras.metrics.Mean.update_state(metric, values)
        return self.get_metrics_result()


class TokenValues(typing.NamedTuple):
    """Loss and metrics of each token, tensors `(B, T)` of one dtype.

    `mask` is 1 for tokens that a loss with `ignore_class` counts, else `()`.
    """

    loss: typing.Any
    metrics: list
    mask: typing.Any


class _Measure:
    """Function for the `TokenValues` of a chunk; `dtypes` are their dtypes."""

    def __init__(self, model):
        self.loss, self.metrics = _loss(model), _metrics(model)
        self.is_masked = _ignores_a_class(self.loss)
        dtype = self.loss.dtype
        mask = dtype if self.is_masked else ()
        self.dtypes = TokenValues(dtype, [dtype for _ in self.metrics], mask)

    def __call__(self, targets, outputs):
        outputs, mask = tf.cast(outputs, self.loss.dtype), ()
        loss = _unreduced(self.loss, targets, outputs)
        if self.is_masked:
            mask = _of_tokens("the mask of loss", implicit_mask(loss), outputs)
        metrics = []
        for metric in self.metrics:
            function, options = wrapped_function(metric)
            if isinstance(function, keras.losses.Loss):
                values = _unreduced(function, targets, outputs)
            else:
                values = function(targets, outputs, **options)
            metrics.append(_of_tokens(metric.name, values, outputs))
        return TokenValues(_of_tokens("loss", loss, outputs), metrics, mask)


def _of_tokens(name, values, outputs):
    """Returns values `(B, tokens)` in the dtype of outputs, or raises an error."""
    if outputs.shape[1] == 1:
        values = tf.reshape(values, (-1, 1))  # Keras drops axes of length 1
    if not values.shape.is_compatible_with(outputs.shape[:2]):
        raise ValueError(
            f"With recompute, {name} must have a value for each token, of shape "
            f"{tuple(outputs.shape[:2])}. Received: shape {tuple(values.shape)}"
        )
    return tf.cast(values, outputs.dtype)


def _reduced(loss, values, sample_weight):
    """Reduces values of a loss for each token as Keras does, with sample weights."""
    reduction = keras.losses.Loss("loss", reduction=loss.reduction, dtype=loss.dtype)
    reduction.call = lambda _, values: values
    return reduction(values, values, sample_weight)


def _unreduced(loss, targets, outputs):
    """Returns the values of a loss for each token, before reduction."""
    # Keras casts targets for losses, but not for metrics
    return loss.call(tf.cast(targets, loss.dtype), outputs)


def _ignores_a_class(loss):
    """Returns `True` if the values of a loss have a mask."""
    _, options = wrapped_function(loss)
    return options.get("ignore_class") is not None


def _check_means(loss, y_pred):
    """Raises a `ValueError` if a mean over slices would not be a mean over tokens."""
    is_loss, by_weight = isinstance(loss, keras.losses.Loss), "mean_with_sample_weight"
    given = {
        "a mask of the outputs, as of mask_zero": tf.is_tensor(y_pred)
        and implicit_mask(y_pred) is not None,
        "ignore_class": is_loss and _ignores_a_class(loss),
        f"reduction={by_weight!r}": is_loss and loss.reduction == by_weight,
    }
    names = " and ".join(name for name, is_given in given.items() if is_given)
    if names:
        raise ValueError(
            "With sequence_parallel the loss must divide by the number of all tokens, "
            "because each replica knows only its own: hide tokens by a sample_weight "
            'of 0, with reduction="sum_over_batch_size", the default. Received: '
            f"{names}"
        )


def _takes_ids(loss):
    """Returns True for losses whose targets are ids; then "accuracy" compares ids."""
    loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    return loss is keras.losses.sparse_categorical_crossentropy or isinstance(
        loss, keras.losses.SparseCategoricalCrossentropy
    )


def _has_own_reduction(loss):
    return type(loss).__call__ is not keras.losses.Loss.__call__


def _loss(model):
    """Returns the loss that the model was compiled with, as a `keras.losses.Loss`."""
    config = compile_options(model)
    for name in ("loss_weights", "weighted_metrics"):
        if config.get(name):
            raise ValueError(
                f"recompute does not support {name}: compile the model without it. "
                f"Received: {name}={config[name]}"
            )
    loss = model.loss
    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    if callable(loss) and not isinstance(loss, keras.losses.Loss):
        # reduced to the mean of its values, as in Keras
        function, loss = loss, keras.losses.Loss("loss")
        loss.call = function
    if not isinstance(loss, keras.losses.Loss):
        raise ValueError(
            "With recompute, loss must be a keras.losses.Loss, a function or the name "
            f"of one. Received: loss={loss!r}"
        )
    if _has_own_reduction(loss):
        raise ValueError(
            "With recompute, a loss must have Keras' reduction of its values: define "
            "the function of targets and outputs in its `call`. Received: "
            f"{type(loss).__name__}, with its own __call__"
        )
    return loss


def _metrics(model):
    """Returns the metrics that the model was compiled with, all of them means."""
    found = [
        metric
        for container in model.metrics
        for metric in getattr(container, "metrics", [])
    ]
    for metric in found:
        own_update = getattr(type(metric), "update_state", None)
        is_mean = own_update is keras.metrics.MeanMetricWrapper.update_state
        function, _ = wrapped_function(metric)
        is_loss = isinstance(function, keras.losses.Loss)
        reduces = is_loss and _has_own_reduction(function)
        if not is_mean or reduces or _ignores_a_class(function):
            raise ValueError(
                "With recompute, metrics must be means over tokens, because only the "
                "outputs of one chunk exist at a time: use a "
                "keras.metrics.MeanMetricWrapper with unchanged update_state, of a "
                "function or of a loss without ignore_class and without its own "
                f"__call__. Received: {metric!r}. Compile without it, or evaluate with "
                "a model that has recompute=None and the same weights."
            )
    return found
