"""The attentions that are compared, controls first."""

from benchmarks.learning.alibi import AlibiExact, AlibiLocal, AlibiPerformer
from keras_performer import PerformerAttention
from keras_performer.layers import ExactAttention, LocalAttention
from keras_performer.layers.choice import positions_of

WITHOUT, EXACT, WINDOW = "no attention", "exact", "window"
# The controls, and what features learn alone and beside a window.
ROWS = (
    WITHOUT,
    EXACT,
    WINDOW,
    "softmax",
    "taylor",
    "window + softmax",
    "window + taylor",
)
# What `--full` adds to tasks that tell of them.
FURTHER = (
    "favor+",
    "relu",
    "elu",
    "window + favor+",
    "exact, alibi",
    "window, alibi",
    "softmax, alibi",
    "window + softmax, alibi",
    "exact, qk_norm",
    "softmax, qk_norm",
    "taylor, qk_norm",
    "softmax, redraw",
    "window + taylor, qk_norm",
    "window + softmax, low gain",
    "window + taylor, low gain",
    "window + softmax, high gain",
    "window, exact last",
    "window + softmax, exact last",
    "no attention, conv",
    "exact, conv",
    "window, conv",
    "softmax, conv",
    "window + softmax, conv",
    "window + taylor, conv",
    "window, alibi, conv",
    "window + softmax, alibi, conv",
    "exact, gate",
    "window, gate",
    "softmax, gate",
    "window + softmax, gate",
    "window + taylor, gate",
    "window + softmax, gains in turn",
    "window + softmax, gains in turn, gate",
    "window, gate, conv",
    "window + softmax, gate, conv",
    "window + softmax, gains in turn, gate, conv",
)
# The last block has exact attention, the others that of the row.
EXACT_LAST = "exact last"
# A convolution over so many tokens goes before the attention of each block.
CONV, CONV_KERNEL_SIZE = "conv", 4
# Features are drawn anew after each so many steps.
REDRAW, REDRAW_STEPS = "redraw", 50
# What is added to far log-weights at first.
GAINS = {"low gain": -3.5, "high gain": 2.0}
# Such gains in turn, from head to head.
GAINS_IN_TURN, TURNS = "gains in turn", (-4.0, 2.0)
# Weights fade with the tokens between query and key.
GATE = "gate"


def attention(row, task, num_heads, key_dim):
    """The attention layer of a row; "none" without one.

    Args:
        row: a name of `ROWS` or `FURTHER`.
        task: a `Task`.
        num_heads, key_dim: ints.
    """
    grid = task.grid or (task.length,)
    _, rotary = positions_of(task.position_embedding, row, grid, key_dim)
    common = dict(
        num_heads=num_heads,
        key_dim=key_dim,
        causal=not task.num_classes,
        rotary=rotary,
    )
    row, *options = row.split(", ")
    if row == WITHOUT:
        return "none"
    common["qk_norm"] = "qk_norm" in options
    if GATE in options:
        common["forget_gate"] = True
    exact, local, performer = ExactAttention, LocalAttention, PerformerAttention
    if "alibi" in options:
        exact, local, performer = AlibiExact, AlibiLocal, AlibiPerformer
    if row == EXACT:
        return exact(**common)
    if row == WINDOW:
        return local(**common, sliding_window=task.window)
    *window, feature_map = row.split(" + ")
    gain = sum(GAINS.get(name, 0.0) for name in options)
    if GAINS_IN_TURN in options:
        gain = [TURNS[head % 2] for head in range(num_heads)]
    return performer(
        **common,
        feature_map=feature_map,
        exact_window=task.window if window else None,
        initial_log_gain=gain,
    )


def of_blocks(row, task, num_layers, num_heads, key_dim):
    """What `PerformerLM(attention=)` is given for a row."""
    own = attention(row, task, num_heads, key_dim)
    return [own] * (num_layers - 1) + [EXACT] if EXACT_LAST in row else own


def conv_kernel_size(row):
    return CONV_KERNEL_SIZE if row.endswith(f", {CONV}") else None


def numbers_in_state(row, task, num_heads, key_dim):
    """How many numbers a layer keeps of a sequence in causal use, for one example.

    Where the last is exact, the first; a convolution's few are left out.
    """
    if row.startswith(WITHOUT):
        return 0
    cache = num_heads * 2 * key_dim
    if row.startswith(EXACT):
        return task.length * cache
    layer = attention(row, task, num_heads, key_dim)
    if task.num_classes:
        return None
    state = layer.initial_state(1)["attention"]
    return sum(int(x.shape.num_elements()) for x in state.values())
