"""Which steps are timed: pairs that take turns, on layers of one size."""

from benchmarks import contenders

SIZES = {
    "width": contenders.WIDTH,
    "num_heads": contenders.NUM_HEADS,
    "key_dim": contenders.KEY_DIM,
}
LENGTHS = (1024, 4096)
# Keys to each side, of both windows.
WINDOW, NUM_GLOBAL_TOKENS = 256, 16


def groups(lengths):
    """Yields lists of cases: of one length and pair, ours first."""
    for length in sorted(lengths):
        for form, ours, theirs in pairs(length):
            yield [
                {
                    "pair": f"{ours[0]} / {theirs[1]}",
                    "side": side,
                    "environment": environment,
                    "layer": layer,
                    "options": options,
                    "form": form,
                    "length": length,
                    "sizes": SIZES,
                    "part": "layer",
                    "step": "training",
                    "mode": "graph",
                    "num_global_tokens": NUM_GLOBAL_TOKENS,
                }
                for side, (environment, layer, options) in (
                    ("ours", ("ours", *ours)),
                    ("theirs", theirs),
                )
            ]


def pairs(length):
    """Tuples: form, our layer and its options, their environment, layer and options."""
    yield (
        "bidirectional",
        ("BigBirdAttention", {}),
        ("kernel_attention", "BigBirdAttention", {}),
    )
    yield (
        "bidirectional",
        (
            "LongformerAttention",
            {"sliding_window": WINDOW + 1, "num_global_tokens": NUM_GLOBAL_TOKENS},
        ),
        (
            "hugging_face",
            "TFLongformerSelfAttention",
            {"attention_window": 2 * WINDOW},
        ),
    )
    yield (
        "bidirectional",
        ("FourierMixing", {"intermediate_dim": 4 * contenders.WIDTH}),
        ("keras_hub", "FNetEncoder", {"intermediate_dim": 4 * contenders.WIDTH}),
    )
    for form in ("bidirectional", "causal"):
        causal = form == "causal"
        options = {"sliding_window": WINDOW + 1, "causal": causal}
        yield (
            form,
            ("LocalAttention", options),
            ("keras_own", "MultiHeadAttention", options),
        )
        chunks = contenders.in_chunks(length)
        features = {"num_random_features": contenders.NUM_RANDOM_FEATURES}
        for feature_map, transform in (("relu", "relu"), ("favor+", "exp")):
            ours = {"feature_map": feature_map, "causal": causal, **features}
            theirs = {"feature_transform": transform, **features}
            yield (
                form,
                ("PerformerAttention", ours),
                (
                    "kernel_attention",
                    "KernelAttention",
                    {**theirs, **(chunks if causal else {})},
                ),
            )
