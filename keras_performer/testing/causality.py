"""Check that later tokens do not change earlier outputs of a model."""

import numpy as np

from keras_performer.testing import leaks
from keras_performer.testing.inputs import batch_and_length, changed, random_inputs


def check_causal(model, inputs=None, *, tolerance=1e-5, seed=0):
    """Raises an error if outputs of a model depend on later tokens.

    It calls the model on inputs and on inputs whose later tokens are changed, and
    compares the outputs before the change. The error names the layer that looks ahead.
    It tries three positions, from the second token to the last: it finds faults, but
    cannot prove that there are none. Layers that keep state between calls, or use
    random numbers outside of training, are reported too.

    Args:
        model: a Keras model or layer of any kind.
        inputs: inputs of the model: an array `(B, T, ...)`, or nested lists and dicts
            of arrays. The changed values are taken from them, so give many different
            token ids. Defaults to random inputs for `model.inputs`, with ids that fit
            all its embeddings.
        tolerance: float, the largest change that counts as rounding, relative to the
            median size of the numbers in an output. Defaults to `1e-05`.
        seed: int, seeds the random inputs and changes. Defaults to `0`.

    Raises:
        AssertionError: if an output depends on later tokens.
        ValueError: if the model cannot be checked: inputs are missing or too few, or no
            output has T tokens that change.

    Example:

    >>> import keras
    >>> model = keras.Sequential(
    ...     [keras.Input((None, 4)), keras.layers.LSTM(3, return_sequences=True)])
    >>> check_causal(model)
    >>> model.add(keras.layers.Conv1D(2, 3, padding="same", name="conv"))
    >>> try:
    ...     check_causal(model)
    ... except AssertionError as error:
    ...     print("conv (Conv1D)" in str(error))
    True
    """
    random = np.random.default_rng(seed)
    if inputs is None:
        inputs = random_inputs(model, random)
    batch, length = batch_and_length(inputs)
    calls = leaks.calls_of(model, inputs)
    any_change = False
    for first in sorted({1, length // 2, length - 1} - {0}):
        kept = np.broadcast_to(np.arange(length) < first, (batch, length))
        others = leaks.calls_of(model, changed(inputs, ~kept, random))
        kept = {(batch, length): kept}
        found = leaks.layer_at_fault(calls, others, kept, tolerance, whole=False)
        if found is not None:
            change, layer = found
            raise AssertionError(
                f"Outputs before token {first} change by up to {change:.2g} if inputs "
                f"from token {first} on change. The first layer whose own earlier "
                f"inputs stay the same is {layer}: hide later keys there (causal=True, "
                'use_causal_mask=True, padding="causal"), or use a layer that reads '
                "forward only."
            )
        any_change |= leaks.tokens_change(calls[-1], others[-1], (batch, length))
    if not any_change:
        raise ValueError(
            "check_causal needs outputs (B, T, ...) that change with the inputs: the "
            "model must return an output for each token, and inputs must have at least "
            "two tokens of different values. Received: inputs with "
            f"(B, T) = {(batch, length)}, outputs of shapes "
            f"{[x.shape for x in calls[-1].outputs]}"
        )
