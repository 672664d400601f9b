"""Which settings are compared, whether they agree, and if not why.

A comparison is a dict; see `comparison`. "ours" and "theirs" are what
`benchmarks/peers/__init__.py` calls a case, without the sizes.
"""

SIZES = {"width": 24, "num_heads": 3, "key_dim": 8}
DENSE = ("query", "key", "value", "attention_output")
GLOBAL_DENSE = ("query_global", "key_global", "value_global")
BLOCK = 4


def comparison(pair, name, environment, ours, theirs, because=None, **arrays):
    """A comparison of two layers on the same arrays.

    Args:
        pair: str, heading of the pair.
        name: str, what is set.
        environment: str, that of the other side.
        ours, theirs: tuples of layer and options.
        because: str, why the numbers differ, or `None` where they are to agree.
        **arrays: what `arrays.drawn` reads and is not the default, and what a side
            reads: `each_once` and `masked`.
    """
    defaults = {"batch": 2, "length": 40, "seed": 0, "sizes": SIZES, "weights": DENSE}
    shared = {"part": "numbers", **defaults, **arrays}
    return {
        "pair": pair,
        "name": name,
        "because": because,
        "environment": environment,
        "ours": {"layer": ours[0], "options": ours[1], **shared},
        "theirs": {"layer": theirs[0], "options": theirs[1], **shared},
    }


def big_bird(name, because=None, random=3, block=BLOCK, theirs=None, **arrays):
    length = arrays.setdefault("length", 64)
    options = {
        "num_rand_blocks": random,
        "from_block_size": block,
        "to_block_size": block,
        "max_rand_mask_length": length,
        "seed": 1,
        **(theirs or {}),
    }
    return comparison(
        "BigBirdAttention / tf-models-official",
        name,
        "kernel_attention",
        ("BigBirdAttention", {"block_size": block}),
        ("BigBirdAttention", options),
        because,
        **arrays,
    )


def longformer(name, window=8, places=(), because=None, **arrays):
    """Their window counts both sides, ours one side and the own."""
    most = max(map(len, places), default=0)
    return comparison(
        "LongformerAttention / transformers",
        name,
        "hugging_face",
        (
            "LongformerAttention",
            {"sliding_window": window // 2 + 1, "num_global_tokens": most},
        ),
        ("LongformerAttention", {"attention_window": window}),
        because,
        **{
            "weights": DENSE + (GLOBAL_DENSE if most else ()),
            "global": places or [[], []],
            **arrays,
        },
    )


def local(name, causal, groups=None, because=None, **arrays):
    options = {"sliding_window": 6, "causal": causal}
    if groups is not None:
        options["num_key_value_heads"] = arrays["num_key_value_heads"] = groups
    theirs = "MultiHeadAttention" if groups is None else "GroupQueryAttention"
    return comparison(
        f"LocalAttention / Keras {theirs}",
        name,
        "keras_own",
        ("LocalAttention", options),
        (theirs, options),
        because,
        **arrays,
    )


def kernel(name, features, causal=None, because=None, **arrays):
    """`causal` is the tokens of a chunk of theirs."""
    theirs = {"feature_transform": features, "num_random_features": 16}
    if causal is not None:
        theirs |= {
            "use_causal_windowed": True,
            "causal_chunk_length": causal,
            "causal_window_length": 40 // causal,
        }
    return comparison(
        "PerformerAttention / KernelAttention",
        name,
        "kernel_attention",
        (
            "PerformerAttention",
            {
                "feature_map": "favor+" if features == "exp" else features,
                "num_random_features": 16,
                "causal": causal is not None,
            },
        ),
        ("KernelAttention", theirs),
        because,
        **{"weights": (*DENSE, "projection"), "num_random_features": 16, **arrays},
    )


def fourier(name, because=None, **arrays):
    options = {"intermediate_dim": 40}
    return comparison(
        "FourierMixing / KerasHub FNetEncoder",
        name,
        "keras_hub",
        ("FourierMixing", options),
        ("FNetEncoder", options),
        because,
        **{
            "weights": ("mixing_norm", "output_norm", "expand", "contract"),
            "intermediate_dim": 40,
            **arrays,
        },
    )


PADDING = [3, 14]

COMPARISONS = (
    big_bird("their random blocks, length 64 of blocks of 4"),
    big_bird("the same, padded", padding=PADDING),
    big_bird("each once", each_once=True),
    big_bird("no random blocks", random=0),
    big_bird("default, 1024", length=1024, block=64, theirs={"max_rand_mask_length": 4096}, batch=1),
    big_bird("default, 1024, once", length=1024, block=64, theirs={"max_rand_mask_length": 4096}, each_once=True, batch=1),
    big_bird("default, 512", length=512, block=64, theirs={"max_rand_mask_length": 4096}, batch=1),
    big_bird("default, 4096", length=4096, block=64, theirs={"max_rand_mask_length": 4096}, batch=1),
    longformer("window alone"),
    longformer("window alone, padded", padding=PADDING),
    longformer("first 3", places=[[0, 1, 2]] * 2),
    longformer("first 3 padded", places=[[0, 1, 2]] * 2, padding=PADDING),
    longformer("places that differ", places=[[5, 17, 30], [0, 20]]),
    longformer("places that differ, padded", places=[[5, 17, 30], [0, 20]], padding=PADDING),
    local("both", False), local("both, padded", False, padding=PADDING),
    local("causal", True), local("causal padded", True, padding=PADDING),
    local("gqa", False, 1), local("gqa causal padded", True, 1, padding=PADDING),
    kernel("relu", "relu"), kernel("relu padded", "relu", padding=PADDING),
    kernel("relu causal 1", "relu", 1), kernel("relu causal 8", "relu", 8),
    kernel("exp", "exp"), kernel("exp padded", "exp", padding=PADDING), kernel("exp causal 1", "exp", 1),
    kernel("exp long", "exp", long_token=3),
    kernel("elu", "elu"), kernel("square", "square"),
    fourier("plain"), fourier("padded, masked", padding=PADDING, masked=True), fourier("padded, not masked", padding=PADDING),
)
