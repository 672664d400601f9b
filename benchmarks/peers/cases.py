"""Settings to compare, with the expected agreement or reason to differ; steps to time.

A comparison is a dict, made by `comparison`. Its entries "ours" and "theirs" are cases
of `benchmarks/contenders/__init__.py`. Options are arguments of the library's layer.
"""

from benchmarks import contenders

SIZES = {"width": 24, "num_heads": 3, "key_dim": 8}
DENSE = ("query", "key", "value", "attention_output")
GLOBAL_DENSE = ("query_global", "key_global", "value_global")
BLOCK, LENGTH, NUM_FEATURES = 4, 40, 16


def comparison(
    pair, name, environment, ours, theirs, because=None, fails=False, **arrays
):
    """Makes a comparison of two layers on the same arrays.

    `ours` and `theirs` are layer and options. `because` is the reason why numbers
    differ, or `None` if they must agree; `fails` expects an error of their layer.
    `arrays` are options of `numbers.drawn`. Sides also read `each_once` and `masked`;
    `all_rows` also compares outputs of hidden tokens.
    """
    defaults = dict(batch=2, length=LENGTH, seed=0, sizes=SIZES, weights=DENSE)
    shared = {"part": "numbers", **defaults, **arrays}
    return {
        "pair": pair,
        "name": name,
        "because": because,
        "expected": "agree" if because is None else "fails" if fails else "differ",
        "environment": environment,
        "ours": {"layer": ours[0], "options": ours[1], **shared},
        "theirs": {"layer": theirs[0], "options": theirs[1], **shared},
    }


def big_bird(name, because=None, random=3, block=BLOCK, table_length=None, **arrays):
    """Compares Big Bird; their table of random blocks is for `table_length` tokens."""
    length = arrays.setdefault("length", 16 * BLOCK)
    options = dict(num_rand_blocks=random, from_block_size=block, to_block_size=block)
    options |= dict(max_rand_mask_length=table_length or length, seed=1)
    headed = "BigBirdAttention / tf-models-official", name, "kernel_attention"
    ours, theirs = {"block_size": block}, options
    sides = ("BigBirdAttention", ours), ("BigBirdAttention", theirs)
    return comparison(*headed, *sides, because, **arrays)


def longformer(name, because=None, places=(), **arrays):
    """Compares Longformer with global tokens at `places` of each sequence.

    Their layer is from transformers, as tf-models-official 2.20 has none.
    """
    # their window counts keys on both sides, our window one side and the own key
    window = 8
    most = max(map(len, places), default=0)
    headed = "LongformerAttention / transformers", name, "hugging_face"
    ours = {"sliding_window": window // 2 + 1, "num_global_tokens": most}
    theirs = {"attention_window": window}
    sides = ("LongformerAttention", ours), ("LongformerAttention", theirs)
    weights = {"weights": DENSE + (GLOBAL_DENSE if most else ())}
    arrays = {**weights, "global": places or [[], []], **arrays}
    return comparison(*headed, *sides, because, **arrays)


def local(name, because=None, causal=False, groups=None, **arrays):
    options = {"sliding_window": 6, "causal": causal}
    if groups is not None:
        options["num_key_value_heads"] = arrays["num_key_value_heads"] = groups
    theirs = "MultiHeadAttention" if groups is None else "GroupQueryAttention"
    headed = f"LocalAttention / Keras {theirs}", name, "ours"
    sides = ("LocalAttention", options), (theirs, options)
    return comparison(*headed, *sides, because, **arrays)


def kernel(name, because=None, *, features, epsilon=None, chunk=None, **arrays):
    """Compares kernels; `chunk`, the tokens of their chunks, makes both causal."""
    theirs = {"feature_transform": features, "num_random_features": NUM_FEATURES}
    if chunk is not None:
        theirs |= contenders.in_chunks(LENGTH, chunk)
    feature_map = "favor+" if features == "exp" else features
    if epsilon is not None:
        feature_map = {
            "class_name": "GeneralizedFeatures",
            "registered_name": "keras_performer>GeneralizedFeatures",
            "config": {"activation": features, "epsilon": epsilon},
        }
    number = {"num_random_features": NUM_FEATURES}
    ours = {"feature_map": feature_map, **number, "causal": chunk is not None}
    pair = "PerformerAttention / tf-models-official KernelAttention"
    sides = ("PerformerAttention", ours), ("KernelAttention", theirs)
    arrays = {"weights": (*DENSE, "projection"), **number, **arrays}
    return comparison(pair, name, "kernel_attention", *sides, because, **arrays)


def fourier(name, because=None, **arrays):
    options = {"intermediate_dim": 40}
    headed = "FourierMixing / KerasHub FNetEncoder", name, "keras_hub"
    sides = ("FourierMixing", options), ("FNetEncoder", options)
    weights = "mixing_norm", "output_norm", "expand", "contract"
    return comparison(*headed, *sides, because, weights=weights, **options, **arrays)


# Number of hidden tokens at the end of each sequence.
PADDED = {"padding": [3, 14]}
DEFAULTS = {"block": 64, "table_length": 4096, "batch": 1}
FIRST, SOME = [[0, 1, 2]] * 2, [[5, 17, 30], [0, 20]]
SMALL = {"query_key_scale": 0.1}

COMPARISONS = (
    big_bird("its random blocks given to ours, 16 blocks of 4 tokens"),
    big_bird("the same, and padding hidden", **PADDED),
    big_bird(
        "the same 16 blocks, ours without those that a block sees anyway",
        "near the end theirs draws blocks that the window has, and counts them twice",
        each_once=True,
    ),
    big_bird("its defaults, 1,024 tokens", length=1024, **DEFAULTS),
    big_bird(
        "its defaults, 1,024 tokens, ours without those that a block sees anyway",
        "theirs draws the last block, which is global, too, and counts it twice",
        length=1024,
        each_once=True,
        **DEFAULTS,
    ),
    big_bird("its defaults, 4,096 tokens", length=4096, **DEFAULTS),
    big_bird(
        "its defaults, 512 tokens",
        "its table is that of 4,096 tokens at any length and names blocks up to 15, "
        "where there are 8: tf.gather fails (on CPUs)",
        fails=True,
        length=512,
        **DEFAULTS,
    ),
    big_bird("512 tokens, max_rand_mask_length=512", length=512, block=64, batch=1),
    big_bird(
        "no random blocks",
        "theirs reshapes an empty tensor by -1, and then it does not fit",
        fails=True,
        random=0,
    ),
    longformer("window alone"),
    longformer("window alone, padding hidden", **PADDED),
    longformer("the first 3 tokens global", places=FIRST),
    longformer("the first 3, padding hidden", places=FIRST, **PADDED),
    longformer("3 and 2 global tokens elsewhere", places=SOME),
    longformer("3 and 2 elsewhere, padding hidden", places=SOME, **PADDED),
    longformer(
        "41 tokens",
        "theirs takes multiples of the window, here 8; its model pads",
        fails=True,
        length=41,
    ),
    local("both sides"),
    local("both sides, padding hidden", **PADDED),
    local("causal", causal=True),
    local("causal, padding hidden", causal=True, **PADDED),
    local(
        "hidden tokens' outputs, too",
        "where no key is seen theirs is the mean of all values, ours 0, and so the "
        "output's bias",
        all_rows=True,
        **PADDED,
    ),
    local("both sides, 1 key-value head of 3", groups=1),
    local("causal, padding hidden, 1 of 3", causal=True, groups=1, **PADDED),
    kernel("relu", features="relu"),
    kernel("relu, padding hidden", features="relu", **PADDED),
    kernel("relu, causal, its chunks of 1 token", features="relu", chunk=1),
    kernel(
        "relu, causal, its chunks of 8 tokens",
        "theirs sees the later tokens of a chunk",
        features="relu",
        chunk=8,
    ),
    kernel("elu, our epsilon 0", features="elu", epsilon=0.0),
    kernel(
        "elu", "ours adds 1e-3 to each feature, theirs to relu's alone", features="elu"
    ),
    kernel("exp, ours favor+; small queries and keys", features="exp", **SMALL),
    kernel("exp, small, padding hidden", features="exp", **SMALL, **PADDED),
    kernel(
        "exp, queries and keys 4 times as large",
        "theirs shifts by one maximum of all tokens, heads and features and adds 1e-6 "
        "to sums of what is left",
        features="exp",
        query_key_scale=0.4,
    ),
    kernel(
        "exp, 4 times as large, its 1e-6 set to 0",
        features="exp",
        query_key_scale=0.4,
        stabilizer=0.0,
    ),
    kernel(
        "exp, twice as large, one token 8 times that",
        "the maximum is that token's: the others' features vanish beside 1e-6",
        features="exp",
        long_token=3,
        query_key_scale=0.2,
    ),
    kernel(
        "exp, one token 8 times that, its 1e-6 set to 0",
        features="exp",
        long_token=3,
        query_key_scale=0.2,
        stabilizer=0.0,
    ),
    fourier("no padding"),
    fourier("padding that nobody hides", **PADDED),
    fourier(
        "padding hidden from ours",
        "theirs takes no mask: padding is mixed as text is; ours counts it as 0",
        masked=True,
        **PADDED,
    ),
)

TIMED_SIZES = {
    "width": contenders.WIDTH,
    "num_heads": contenders.NUM_HEADS,
    "key_dim": contenders.KEY_DIM,
}
# Keys on each side in both windows, and number of global tokens.
WINDOW, NUM_GLOBAL_TOKENS = 256, 16


def timed(lengths):
    """Yields pairs of cases that take turns, ours first, for layers of equal sizes."""
    for length in sorted(lengths):
        for form, ours, theirs in pairs(length):
            shared = dict(form=form, length=length, sizes=TIMED_SIZES, part="layer")
            shared |= dict(step="training", mode="graph")
            shared |= dict(num_global_tokens=NUM_GLOBAL_TOKENS)
            names = "pair", "side", "environment", "layer", "options"
            yield [
                dict(zip(names, (f"{ours[0]} / {theirs[1]}", *side))) | shared
                for side in (("ours", "ours", *ours), ("theirs", *theirs))
            ]


def pairs(length):
    """Yields form, our layer and options, and their environment, layer and options."""
    near = WINDOW + 1
    window = {"sliding_window": near, "num_global_tokens": NUM_GLOBAL_TOKENS}
    longformer = "TFLongformerSelfAttention", {"attention_window": 2 * WINDOW}
    inner = {"intermediate_dim": 4 * contenders.WIDTH}
    for ours, theirs in (
        (("BigBirdAttention", {}), ("kernel_attention", "BigBirdAttention", {})),
        (("LongformerAttention", window), ("hugging_face", *longformer)),
        (("FourierMixing", inner), ("keras_hub", "FNetEncoder", inner)),
    ):
        yield "bidirectional", ours, theirs
    for form in ("bidirectional", "causal"):
        causal = form == "causal"
        options = {"sliding_window": near, "causal": causal}
        ours = "LocalAttention", options
        yield form, ours, ("ours", "MultiHeadAttention", options)
        features = {"num_random_features": contenders.NUM_RANDOM_FEATURES}
        chunks = contenders.in_chunks(length) if causal else {}
        for feature_map, transform in (("relu", "relu"), ("favor+", "exp")):
            options = {"feature_map": feature_map, "causal": causal, **features}
            theirs = {"feature_transform": transform, **features, **chunks}
            ours = "PerformerAttention", options
            yield form, ours, ("kernel_attention", "KernelAttention", theirs)
