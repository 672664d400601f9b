# %% [markdown]
"""
# Questions about a long document

A document of 2,048 words says where eight people are, in eight short lines far apart
from each other. A model reads the document once and answers eight questions: where is
Anna, where is Ben? For each answer it must find one line far away. Local attention
cannot reach that line. Exact attention can, at a cost that grows with the square of the
length.

You will

1. make such documents from the sources of Python's standard library,
2. train a model with `PerformerAttention`, and the same model with `LocalAttention`,
3. plot the attention scores of a question.

[This page as a notebook](documents.ipynb). To run it, clone the repository and run
`pip install ".[tensorflow]" matplotlib` in its top folder. The outputs are from one run
on two CPU cores.
"""

# %%
import collections
import pathlib
import re
import sysconfig

import keras
import matplotlib.pyplot as plt
import numpy as np
from keras import layers

from keras_performer import PerformerAttention
from keras_performer.layers import LocalAttention, PerformerBlock

SHORT = 256  # words of a document in the first part of training
LONG = 2048  # words of a document in the second part, and in the test
STEPS = 240  # on short documents; two thirds as many follow on long documents
WIDTH = 64
TEST = 64  # held-out documents

keras.utils.set_random_seed(0)

# %% [markdown]
"""
## The data

Each document begins with the questions, such as `Clara ?`. The answers are lines such
as `Clara school .` among the other words. The places change from document to document,
so the model cannot memorize the answers.
"""

# %%
NAMES = "Anna Ben Clara David Emma Felix Greta Henry".split()
PLACES = "home school work sea".split()

folder = pathlib.Path(sysconfig.get_path("stdlib"))
text = "\n".join(p.read_text("utf-8", "replace") for p in sorted(folder.glob("*.py")))
words = re.findall(r"[A-Za-z]+|[^\sA-Za-z]", text)
words = [word for word in words if word not in NAMES + PLACES]
common = [word for word, _ in collections.Counter(words).most_common(500)]
known = dict.fromkeys(["<other>", "?", ".", *NAMES, *PLACES, *common])
ids = {word: i for i, word in enumerate(known)}
background = np.array([ids.get(word, 0) for word in words])  # 0 is "<other>"


def documents(count, length, seed):
    """Documents `(count, length)`, and the places that answer their questions."""
    random = np.random.default_rng(seed)
    rows, answers = [], []
    for _ in range(count):
        places = random.integers(len(PLACES), size=len(NAMES))
        asked, told = (random.permutation(len(NAMES)) for _ in range(2))
        questions = [x for i in asked for x in (ids[NAMES[i]], ids["?"])]
        room = length - 5 * len(NAMES)
        start = random.integers(len(background) - room)
        rest = list(background[start : start + room])
        for i, at in zip(told, sorted(random.integers(room, size=len(NAMES)))[::-1]):
            rest[at:at] = [ids[NAMES[i]], ids[PLACES[places[i]]], ids["."]]
        rows.append(questions + rest)
        answers.append(places[asked])
    return np.array(rows), np.array(answers)


document, answer = documents(1, SHORT, seed=0)
spelled = {i: word for word, i in ids.items()}
print(" ".join(spelled[i] for i in document[0, :60]))

# %% [markdown]
"""
## The model

The model has two blocks, each with a short convolution, attention and a feed-forward
network. Both kinds of attention give words less than 32 words away their exact weights.
`PerformerAttention` also estimates the weights of all other words; `LocalAttention`
ignores them. The settings:

- `conv_kernel_size=4` joins each place to the name before it.
- `rotary=True` works at any length, so training can begin with short documents.
- No `forget_gate`: this model is bidirectional, and far lines matter most.
- `num_random_features=128`, half the default, makes the steps faster.
- `initial_log_gain` keeps its default, 0. If your model does not find far tokens, try
  [2](../exact_window.md#the-initial-log-gain).
"""


# %%
def make_model(attention_class, **options):
    tokens = keras.Input((None,), dtype="int32")
    x = layers.Embedding(len(ids), WIDTH)(tokens)
    for _ in range(2):
        attention = attention_class(4, WIDTH // 4, rotary=True, **options)
        x = PerformerBlock(attention, 2 * WIDTH, conv_kernel_size=4)(x)
    x = x[:, : 2 * len(NAMES) : 2]  # the names of the questions
    x = layers.LayerNormalization()(x)
    return keras.Model(tokens, layers.Dense(len(PLACES))(x))


def train(model):
    """Trains on short and then long documents; returns the accuracy on new ones."""
    steps = STEPS + 2 * STEPS // 3
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps, warmup_target=4e-3, warmup_steps=min(50, steps // 2)
    )
    model.compile(
        keras.optimizers.Adam(rate, beta_2=0.98, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(*documents(16 * STEPS, SHORT, seed=1), batch_size=16, verbose=2)
    # Compile again: Keras would trace another length as an unknown one, without XLA.
    model.compile(model.optimizer, model.loss, metrics=["accuracy"])
    few = 2 * STEPS // 3
    model.fit(*documents(2 * few, LONG, seed=2), batch_size=2, verbose=2)
    return model.evaluate(*documents(TEST, LONG, seed=3), batch_size=2, verbose=0)[1]


performer = make_model(PerformerAttention, exact_window=32, num_random_features=128)
local = make_model(LocalAttention, sliding_window=32)
accuracy = {"PerformerAttention": train(performer), "LocalAttention": train(local)}
for name, value in accuracy.items():
    print(f"{name:20}{value:.3f}")

# %% [markdown]
"""
Guessing has an accuracy of 0.25. Always naming the document's most frequent place is
right about half of the time. The program
[`examples/documents.py`](../../examples/README.md#results) also trains exact attention
on this task, in other settings: exact attention reached 0.908, and
`PerformerAttention` 0.873. The values in the README are of
[causal models](../../benchmarks/notes/long_data.md#documents).

## Visualize the attention scores

With `return_attention_scores=True` a layer also returns its attention weights, one for
each pair of words: ask for them on short inputs only. The plot shows which words the
first question attends to, in each head of the first block. A dark line marks a large
weight. The cell prints the words around the largest weight after the questions.
"""

# %%
inputs = performer.layers[1](document)  # the embedding of the short document
block = performer.layers[2]
x = inputs + block.convolution(block.convolution_norm(inputs))
x = block.attention_norm(x)
_, scores = block.attention(x, x, return_attention_scores=True)

weights = np.maximum(scores[0, :, 0], 0)  # (heads, words)
first = 2 * len(NAMES)  # the first word after the questions
found = first + weights[:, first:].max(0).argmax()
print(" ".join(spelled[i] for i in document[0, found - 2 : found + 3]))

plt.figure(figsize=(8, 3))
plt.imshow(np.sqrt(weights), aspect="auto", cmap="Blues", interpolation="nearest")
plt.xlabel("word of the document")
plt.ylabel("head")
plt.yticks(range(4))
plt.title("Attention of the first question")
plt.show()

# %% [markdown]
"""
## Summary

- When the answer is far away, use `PerformerAttention`, or exact attention if you can
  pay for it: local attention fails.
- Train on short sequences first. Long documents cost more and have no more questions.
- Try a [short convolution](../feature_maps.md#a-short-convolution), so that each token
  knows its neighbours.
- Always train local attention as a baseline. If it is as good, keep it: it is cheaper.
"""
