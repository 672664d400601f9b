"""A Performer in Keras: build, train, save, load, continue a sequence. Seconds.

python -m examples.quickstart
"""

import pathlib
import tempfile

import keras
import numpy as np

import keras_performer


def main():
    # Sequences of 1,000 tokens; the label says which token came first.
    random = np.random.default_rng(0)
    tokens = random.integers(0, 8, (64, 1000))
    labels = tokens[:, 0]

    # In keras.Sequential: one tensor goes in, so it is self-attention.
    model = keras.Sequential(
        [
            keras.layers.Embedding(8, 32),
            keras_performer.PerformerAttention(num_heads=2, key_dim=16, seed=0),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(8),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    redraw = keras_performer.RedrawFeatures(every_n_steps=4)
    model.fit(tokens, labels, epochs=2, batch_size=16, callbacks=[redraw])

    # In a functional model, where MultiHeadAttention would stand.
    query, memory = keras.Input((None, 32)), keras.Input((None, 32))
    attention = keras_performer.PerformerAttention(2, 16, feature_map="relu")
    functional = keras.Model([query, memory], attention(query, memory))
    output = functional([np.ones((1, 5, 32)), np.ones((1, 2000, 32))])
    print("cross-attention:", output.shape)

    # Saving and loading needs no custom_objects.
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
    before, after = (m.predict(tokens[:4], verbose=0) for m in (model, loaded))
    print("equal after loading:", bool(np.array_equal(before, after)))

    # A language model generates at the same cost per token however long it gets.
    lm = keras_performer.PerformerLM(8, 1000, num_layers=1, num_heads=2, hidden_dim=32)
    print("generated:", keras_performer.generate(lm, tokens[:1, :4], 16, seed=0)[0])


if __name__ == "__main__":
    main()
