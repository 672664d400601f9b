# %% [markdown]
"""
# A language model that generates at constant cost

A causal language model with `PerformerAttention` sums up the past in a *state* of fixed
size, so a new token costs the same after ten tokens and after a million. You will

1. train a model of bytes on the sources of Python's standard library,
2. compare it with local attention,
3. generate text, and stream it,
4. read token by token with a state,
5. save and load the model.

[This page as a notebook](language_model.ipynb). To run it, clone the repository and run
`pip install ".[tensorflow]"` in its top folder. The outputs are from one run on two CPU
cores.
"""

# %%
import pathlib
import sysconfig

import keras
import numpy as np

import keras_performer
from keras_performer.layers import LocalAttention

LENGTH = 512
STEPS = 600
WIDTH = 128
TEST = 64  # held-out sequences

keras.utils.set_random_seed(0)

# %% [markdown]
"""
## The data

Every tenth file is held out. `sequences` cuts random pieces of `LENGTH` bytes from the
text. The target of each byte is the next byte.
"""

# %%
folder = pathlib.Path(sysconfig.get_path("stdlib"))
files = [path.read_bytes() for path in sorted(folder.glob("*.py"))]
held_out = np.frombuffer(b"".join(files[::10]), np.uint8)
training = np.frombuffer(
    b"".join(file for i, file in enumerate(files) if i % 10), np.uint8
)


def sequences(codes, count, seed):
    starts = np.random.default_rng(seed).integers(len(codes) - LENGTH, size=count)
    cut = codes[starts[:, None] + np.arange(LENGTH + 1)]
    return cut[:, :-1], cut[:, 1:]


# %% [markdown]
"""
## The model

By default, a causal model gives the last 64 bytes their exact weights
(`exact_window=64`), and lets weights fade with the distance, at a rate that each head
learns (`forget_gate=True`). [Window, gain and gate](../exact_window.md) explains both.
This model has no `max_length`, so it takes any length. For texts much longer than these
512 bytes pass `max_length`: the [gate](../exact_window.md#the-forget-gate) then begins
with a longer reach.
"""


# %%
def make_model(**options):
    return keras_performer.PerformerLM(
        vocabulary_size=256,
        # for long texts give the longest length
        max_length=None,
        num_layers=2,
        num_heads=WIDTH // 32,
        hidden_dim=WIDTH,
        **options,
    )


def train(model):
    """Trains a model; returns its bits per held-out byte."""
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, STEPS, warmup_target=3e-3, warmup_steps=STEPS // 10
    )
    model.compile(
        keras.optimizers.Adam(rate, beta_2=0.98, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(*sequences(training, 8 * STEPS, seed=1), batch_size=8, verbose=2)
    loss = model.evaluate(*sequences(held_out, TEST, seed=2), batch_size=8, verbose=0)
    return loss / np.log(2)


model = make_model()
print(f"PerformerAttention: {train(model):.3f} bits per byte")

# %% [markdown]
"""
## Compare with local attention

In text, near bytes matter most. Train local attention with the same gate as a baseline.
If it is as good on your text, keep it: it is cheaper and also has a state.
"""

# %%
attention = LocalAttention(
    WIDTH // 32, 32, sliding_window=64, causal=True, forget_gate=True
)
local = make_model(attention=attention)
print(f"LocalAttention: {train(local):.3f} bits per byte")

# %% [markdown]
"""
## Generate

A model with a `vocabulary_size` of at most 256 also takes bytes as a prompt, and then
returns bytes. The result has 100 bytes, prompt included. `top_p` samples from the
likeliest bytes only.
"""

# %%
prompt = b"    def "
print(keras_performer.generate(model, prompt, 100, top_p=0.9, seed=0).decode("latin-1"))

# %% [markdown]
"""
You can pass several prompts of different lengths. `num_samples` continues each prompt
several times:
"""

# %%
samples = keras_performer.generate(model, [prompt, b"import "], 20, num_samples=2)
print([[len(sample) for sample in group] for group in samples])  # [[20, 20], [20, 20]]

# %% [markdown]
"""
`generate_stream` yields the bytes as the model makes them:
"""

# %%
written = prompt
for piece in keras_performer.generate_stream(model, prompt, 40, seed=0, chunk_size=8):
    written += piece
print(written == keras_performer.generate(model, prompt, 40, seed=0))  # True

# %% [markdown]
"""
## Token by token

You can also feed the model token by token, or piece by piece. With `return_state=True`
it returns its state; pass the state back with the tokens that follow. The logits are
the same as in one call.
"""

# %%
tokens = sequences(held_out, 1, seed=3)[0]
whole = model(tokens)
state = model.get_initial_state(batch_size=1)
pieces = []
for piece in np.array_split(tokens, 4, axis=1):
    logits, state = model(piece, state=state, return_state=True)
    pieces.append(logits)
print(np.allclose(np.concatenate(pieces, axis=1), whole, atol=1e-3))  # True
print(int(state["position"][0]) == LENGTH)  # True

# %% [markdown]
"""
## Save and load

The file holds the random features as well as the weights. To serve the model where this
package is not installed, see the recipe [Export and serve a
model](../recipes/serve.md).
"""

# %%
model.save("model.keras")
loaded = keras.models.load_model("model.keras")
print(np.array_equal(loaded(tokens), whole))  # True

# %% [markdown]
"""
## Summary

- Start with the defaults, and compare with `LocalAttention(forget_gate=True)`.
- The state has a fixed size, so each generated token costs the same.
- For short texts exact attention with a key-value cache is faster: see
  [Generate](../decoding.md#when-a-cache-is-faster).
"""
