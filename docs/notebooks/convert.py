# %% [markdown]
"""
# Convert a trained model and calibrate it

Take a model that was trained with `keras.layers.MultiHeadAttention`, swap in linear
attention and keep its weights. You will

1. train a small model with exact attention,
2. measure how well linear attention can estimate each of its heads,
3. convert it with a window, and calibrate it on data without labels,
4. train the attention layer by layer,
5. compare with local attention, which is cheaper.

[This page as a notebook](convert.ipynb). To run it, clone the repository and run
`pip install ".[tensorflow]" matplotlib` in its top folder. The outputs are from one run
on two CPU cores.
"""

# %%
import pathlib
import sysconfig

import keras
import matplotlib.pyplot as plt
import numpy as np
from keras import layers

import keras_performer
from keras_performer.conversion import convert_attention, implied_attention
from keras_performer.layers import LocalAttention

LENGTH = 512
STEPS = 1500
WIDTH = 64
WINDOW = 32  # keys less than 32 tokens away keep their exact weights
TEST = 32  # held-out sequences
TRANSFER = 100  # steps of transfer_attention

keras.utils.set_random_seed(0)
plt.show()  # from here on, Jupyter shows the figures of the reports

# %% [markdown]
"""
## A model with exact attention

This model predicts the next byte of Python sources; each token also knows the byte
before it. Replace the model with your trained model.
"""

# %%
folder = pathlib.Path(sysconfig.get_path("stdlib"))
text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
codes = np.frombuffer(text, np.uint8)
training, held_out = np.split(codes, [9 * len(codes) // 10])


def sequences(codes, count, seed):
    starts = np.random.default_rng(seed).integers(len(codes) - LENGTH, size=count)
    cut = codes[starts[:, None] + np.arange(LENGTH + 1)]
    return cut[:, :-1], cut[:, 1:]


tokens = keras.Input((LENGTH,), dtype="int32")
x = layers.Embedding(256, WIDTH)(tokens)
x = x + layers.Embedding(LENGTH, WIDTH)(keras.ops.arange(LENGTH))
before = keras.ops.pad(tokens, ((0, 0), (1, 0)))[:, :-1]
x = x + layers.Embedding(256, WIDTH)(before)
for name in ("first", "second"):
    y = layers.LayerNormalization()(x)
    attention = layers.MultiHeadAttention(4, WIDTH // 4, name=name)
    x = x + attention(y, y, use_causal_mask=True)
    y = layers.Dense(4 * WIDTH, "gelu")(layers.LayerNormalization()(x))
    x = x + layers.Dense(WIDTH)(y)
logits = layers.Dense(256)(layers.LayerNormalization()(x))
trained = keras.Model(tokens, logits)

loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
rate = keras.optimizers.schedules.CosineDecay(
    0.0, STEPS, warmup_target=3e-3, warmup_steps=STEPS // 10
)
trained.compile(keras.optimizers.Adam(rate, clipnorm=1.0), loss)
trained.fit(*sequences(training, 8 * STEPS, seed=1), batch_size=8, verbose=2)


def bits(model):
    """Bits per held-out byte."""
    model.compile(loss=loss)
    test = sequences(held_out, TEST, seed=2)
    return model.evaluate(*test, batch_size=8, verbose=0) / np.log(2)


table = {"exact attention": bits(trained)}
print(f"{table['exact attention']:.3f} bits per byte")

# %% [markdown]
"""
## Look at the heads

`approximation_report` runs the model on your data. For each head it compares exact
attention with estimates from the same queries and keys. `90% within` is the window that
holds nine tenths of the head's weights. The columns from `mean` to `doubled` are errors
of the estimates; [a table](../replace.md#measure-the-error-of-each-head) explains every
column. `advice` names the simplest setting whose error is at most 1.25 times the
smallest of `window`, `features` and `both`; or `keep it exact`, if no error is below
half of `mean`. Keep a layer exact if most of its heads have this advice.
"""

# %%
data = sequences(training, 16, seed=3)[0]  # without labels
report = keras_performer.approximation_report(
    trained, data, exact_window=WINDOW, seed=0
)
print(report)

# %%
report.plot()

# %% [markdown]
"""
## Convert

`convert_to_performer` returns a new model and a report, and leaves your model as it is.
So does `calibrate` below. Both layers are converted here, against the advice for three
heads of `second`, to measure the cost.
"""

# %%
performer, report = keras_performer.convert_to_performer(
    trained, exact_window=WINDOW, seed=0
)
print(report)
table["converted"] = bits(performer)

# %% [markdown]
"""
## Calibrate

`calibrate` fits the estimated weights of far tokens to your data. It needs no labels
and no training steps. Its report says [how queries and keys
changed](../convert.md#how-calibrate-fits): `centred` keys have the mean 0, `balanced`
queries and keys also have equal covariances.
"""

# %%
calibrated, report = keras_performer.calibrate(performer, data, verbose=0)
print(report)
table["converted, calibrated"] = bits(calibrated)

# %% [markdown]
"""
Compare the attention weights of one head in the second layer, exact and estimated with
this window, without calibration:
"""

# %%
found = implied_attention(trained, data[:1], exact_window=WINDOW, seed=0)
found[1].plot(head=0)

# %% [markdown]
"""
## Train the attention, layer by layer

`transfer_attention` trains the queries and keys of each layer, so that the layer
returns nearly what exact attention returns. It needs no labels either. Start from the
converted model: the features that `calibrate` chooses may learn worse. The report has
errors of layer outputs; `calibrate` measured the heads, before the output projection.
"""

# %%
transferred, report = keras_performer.transfer_attention(
    performer, trained, data, num_steps=TRANSFER, verbose=0
)
print(report)
table["converted, transferred"] = bits(transferred)

# %% [markdown]
"""
## Compare with local attention

Local attention takes the same weights and needs no features. If it is as good, keep it.
"""

# %%
local, _ = convert_attention(trained, LocalAttention, sliding_window=WINDOW)
table["local attention"] = bits(local)
for name, value in table.items():
    print(f"{name:40}{value:.3f} bits per byte")

# %% [markdown]
"""
Compare each row with the first one, the trained model. Here conversion loses little,
and less than local attention. `calibrate` and `transfer_attention` lowered the errors
of the layers in the reports above, but in this small model the bits hardly change.

## Summary

- Always convert with a window.
- Calibrate on a few thousand tokens, then measure on your own task.
- If the model loses too much, use `transfer_attention`, convert only some layers with
  `layers=`, or train on.
- [Convert a trained model](../convert.md) lists the layers that can be converted, and
  has results of larger models.
"""
