"""Attention whose weights decay: every form beside its float64 twin, with gradients."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import reference
from keras_performer.ops.linear import chunkwise, log_pairs
from keras_performer.ops.linear_attention import linear_attention

from .cases import activation_kernel, normal, qkv, softmax_kernel, value_and_gradients
from .test_trunk import FORMS as TRUNK
from .test_trunk import one_key_above

# Chunks are of 64 tokens: the third one has two.
LENGTH, BATCH = 130, 4
KERNELS = {
    "softmax": softmax_kernel,
    "taylor": ops.TaylorKernel,
    "relu": lambda: activation_kernel(tf.nn.relu, 0.1),
}
FIRSTS = (0, 1, 9, 64, 129), (0, 70, 75), (0, 100), (0,)


def gates(length=LENGTH, seed=5):
    """Log-decays: small ones, large ones, some that are huge, some that hide all."""
    random = np.random.default_rng(seed)
    shape = length, 1
    rare = random.random(shape)
    kinds = (
        -0.3 * np.abs(random.standard_normal(shape)),
        -8.0 * np.abs(random.standard_normal(shape)),
        np.where(rare < 0.1, -1e4, -0.1),
        np.where(rare < 0.05, -1e30, -0.2),
    )
    return tf.constant(np.stack(kinds))


def masks(length=LENGTH):
    """The first keys, some of them, and in other examples long runs."""
    place = np.arange(length)
    runs = (place >= 70) | (place < 20)
    scattered = (place > 0) & (place % 5 != 3)
    return tf.constant(np.stack([scattered, runs, scattered, runs]))


class Case:
    """The operation and its twin on the same arguments."""

    def __init__(self, causal, window=None, packed=False, mask=None, kernel="softmax"):
        self.kernel, self.mask = KERNELS[kernel](), mask
        self.causal, self.window, self.packed = causal, window, packed

    def starts(self, length):
        if not self.packed:
            return None
        firsts = [[i in first for i in range(length)] for first in FIRSTS]
        return tf.reshape(tf.constant(firsts, "bool"), (BATCH, length))

    def inputs(self, std=1.0):
        inputs = [*qkv(BATCH, LENGTH, LENGTH, 1, 2, std), gates()]
        return [*inputs, normal((2,), 9)] if self.window else inputs

    def ours(self, query, key, value, decay, gain=None, cuts=()):
        outputs, state, length = [], None, query.shape[1]
        length = LENGTH if length is None else length
        for piece in map(slice, (0, *cuts), (*cuts, length)):
            parts = self.mask, self.starts(length)
            seen, starts = (x if x is None else x[:, piece] for x in parts)
            visible = ops.Visibility(seen, self.causal, starts=starts)
            given = (x[:, piece] for x in (query, key, value))
            options = self.kernel, visible, self.window, gain, state
            output, state = linear_attention(*given, *options, decay=decay[:, piece])
            outputs.append(output)
        return tf.concat(outputs, 1)

    def twin(self, query, key, value, decay, gain=None):
        return reference.attention(
            *(query, key, value, self.kernel.astype(tf.float64)),
            *(self.mask, self.causal),
            exact_window=self.window,
            log_gain=gain,
            starts=self.starts(query.shape[1]),
            decay=decay,
        )

    def check(self, inputs, ours=None, tolerance=1e-8):
        found = value_and_gradients(ours or self.ours, inputs)
        twin = value_and_gradients(self.twin, inputs)
        for x, y in zip(found, twin, strict=True):
            x = tf.zeros_like(y) if x is None else x  # nothing depends on a gain
            scale = float(tf.reduce_max(tf.abs(y)))
            np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * scale + 1e-12)


class Exact(Case):
    """Attention with exact weights; `window` is that of local attention."""

    def inputs(self, std=1.0):
        return super().inputs(std)[:4]

    def ours(self, query, key, value, decay, cuts=()):
        outputs, state, length = [], None, query.shape[1]
        for piece in map(slice, (0, *cuts), (*cuts, length)):
            parts = self.mask, self.starts(length)
            seen, starts = (x if x is None else x[:, piece] for x in parts)
            visible = ops.Visibility(seen, self.causal, starts=starts)
            inputs = [x[:, piece] for x in (query, key, value)]
            gates_ = {"decay": decay[:, piece]}
            if self.window is None:
                output = ops.exact_attention(*inputs, visible, **gates_)
            else:
                output, state = ops.local_attention(
                    *inputs, self.window, visible, state=state, **gates_
                )
            outputs.append(output)
        return tf.concat(outputs, 1)

    def twin(self, query, key, value, decay):
        return reference.attention(
            *(query, key, value, None, self.mask, self.causal),
            exact_window=self.window or LENGTH,
            starts=self.starts(query.shape[1]),
            decay=decay,
        )


# Whether it is causal, the window, whether it is packed, and whether keys are masked.
FORMS = [
    (True, None, False, True),
    (True, None, True, False),
    (True, 5, False, False),
    (True, 5, True, True),
    (True, 100, True, False),
    (False, None, False, False),
    (False, None, True, True),
    (False, 5, True, False),
    (False, 100, False, True),
]


@pytest.mark.parametrize("causal, window, packed, masked", FORMS)
@pytest.mark.parametrize("kind", [Case, Exact])
def test_weights_decay_as_the_twin_says(kind, causal, window, packed, masked):
    case = kind(causal, window, packed, masks() if masked else None)
    case.check(case.inputs(8.0 if masked else 1.0))


@pytest.mark.parametrize(
    "kernel, causal, window, packed",
    [
        ("taylor", True, None, False),
        ("taylor", True, 5, True),
        ("taylor", False, 5, False),
        ("taylor", False, None, True),
        ("relu", True, None, True),
        ("relu", False, None, False),
    ],
)
def test_kernels_without_a_stabilizer(kernel, causal, window, packed):
    case = Case(causal, window, packed, masks() if packed else None, kernel)
    case.check(case.inputs())


CUTS = (1, 63), (64, 65, 101), (70, 71, 72, 129)


@pytest.mark.parametrize(
    "kernel, window, cuts",
    [
        ("softmax", None, CUTS[1]),
        ("softmax", 5, CUTS[2]),
        ("softmax", 100, CUTS[0]),
        ("softmax", 100, CUTS[1]),
        ("taylor", None, CUTS[2]),
        ("taylor", 5, CUTS[1]),
    ],
)
def test_a_sequence_cut_into_states(kernel, window, cuts):
    packed = cuts[0] == 64
    case = Case(True, window, packed, masks() if packed else None, kernel)
    case.check(case.inputs(), lambda *x: case.ours(*x, cuts=cuts))


@pytest.mark.parametrize(
    "window, cuts", [(1, CUTS[1]), (5, CUTS[2]), (5, CUTS[1]), (100, CUTS[0])]
)
def test_local_attention_cut_into_states(window, cuts):
    packed = cuts[0] == 64
    case = Exact(True, window, packed, masks() if packed else None)
    case.check(case.inputs(), lambda *x: case.ours(*x, cuts=cuts))


def test_local_attention_from_an_empty_state():
    query, key, value, decay = Exact(True, 5).inputs()
    start = ops.DecayingRecent.empty(BATCH, 5, 1, 5, 7, "float64")
    visible = ops.Visibility(causal=True)
    pair = (
        ops.local_attention(query, key, value, 5, visible, state=state, decay=decay)
        for state in (start, None)
    )
    for x, y in zip(*map(tf.nest.flatten, pair), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-12)


@pytest.mark.parametrize("causal, window", [(True, 5), (False, None)])
def test_scores_decay(window, causal):
    case = Case(causal, window)
    query, key, _, decay, *gain = case.inputs()
    value = tf.eye(LENGTH, batch_shape=(BATCH,), dtype=tf.float64)[:, :, tf.newaxis]
    case.starts = lambda length: None
    found = ops.attention_scores(
        query, key, case.kernel, None, causal, window, *gain, decay=decay
    )
    expected = tf.transpose(case.twin(query, key, value, decay, *gain), (0, 2, 1, 3))
    np.testing.assert_allclose(found, expected, atol=1e-9)
    found = ops.exact_scores(query, key, None, causal, decay=decay)
    expected = Exact(causal).twin(query, key, value, decay)
    np.testing.assert_allclose(found, tf.transpose(expected, (0, 2, 1, 3)), atol=1e-9)


def test_a_state_that_was_empty_is_a_state():
    """Decoding starts from `with_recent_keys`, or from no state."""
    case = Case(True, 5)
    query, key, value, decay, gain = case.inputs()
    start = ops.with_recent_keys(
        ops.initial_state(BATCH, 1, 22, 7, "float64"), 5, 5, "float64", with_decay=True
    )
    assert isinstance(start, ops.DecayingState)
    options = case.kernel, ops.Visibility(causal=True), 5, gain
    found, later = linear_attention(query, key, value, *options, start, decay=decay)
    expected, same = linear_attention(query, key, value, *options, decay=decay)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    for x, y in zip(later, same, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-12)


# A key that dwarfs all others, and what makes later queries forget it.
@pytest.mark.parametrize(
    "place, forgets, causal, window",
    [
        (0, "gate", True, None),
        (0, "start", True, 5),
        (30, "start", True, None),
        (30, "gate", False, None),
        (69, "gate", True, 5),
        (69, "start", False, None),
        (LENGTH - 1, "gate", True, None),
    ],
)
def test_one_key_80_nats_above_and_then_forgotten(place, forgets, causal, window):
    case = Case(causal, window)
    query, key, value = (
        tf.cast(tf.repeat(x[:1], 2, 0), tf.float64)
        for x in one_key_above(place, TRUNK["causal"])
    )
    number = np.arange(LENGTH)
    hit = number == (place + 3 if place < LENGTH - 1 else place - 3)
    decay = np.where(hit & (forgets == "gate"), -100.0, -0.05)[:, None]
    case.starts = lambda length: None
    if forgets == "start":
        case.starts = lambda length: tf.constant(np.stack([hit, hit]))
    case.mask = tf.constant(np.stack([number >= 0, number > 0]))
    inputs = [query, key, value, tf.constant(np.stack([decay, decay]))]
    case.check(inputs + [normal((2,), 9)] * bool(window), tolerance=1e-7)


def counted(monkeypatch):
    """A list that gets, for each block, which of its chunks are rare."""
    rare, found = [], chunkwise.references

    def watched(*args):
        references = found(*args)
        rare.append(references.rare.numpy())
        return references

    monkeypatch.setattr(chunkwise, "references", watched)
    return rare


@pytest.mark.parametrize("gate", [-0.1, -4.0, -1e4])
def test_gates_alone_make_no_chunk_rare(gate, monkeypatch):
    rare = counted(monkeypatch)
    query, key, value = qkv(2, LENGTH, LENGTH, 1, 2, dtype="float32")
    decay = tf.fill((2, LENGTH, 1), gate)
    case = Case(True)
    found = case.ours(query, key, value, decay)
    assert sum(x.size for x in rare) >= 6 and not np.concatenate(rare, 1).any()
    inputs = (tf.cast(x, tf.float64) for x in (query, key, value, decay))
    np.testing.assert_allclose(found, case.twin(*inputs), atol=2e-5)


def test_a_key_that_is_forgotten_in_its_chunk_makes_that_chunk_rare(monkeypatch):
    rare, computed = counted(monkeypatch), []
    sums = log_pairs._weighted_sums

    def watched(*args):
        computed.append(args[1][0].shape)
        return sums(*args)

    monkeypatch.setattr(log_pairs, "_weighted_sums", watched)
    query, key, value = one_key_above(30, TRUNK["causal"])
    decay = np.full((2, LENGTH, 1), -0.05, "float32")
    decay[0, 33] = -100.0  # of the first example alone
    Case(True).ours(query, key, value, tf.constant(decay))
    flags = np.concatenate(rare, 1)
    assert flags[0, 0] and computed


def test_a_first_key_that_is_forgotten_leaves_float32_the_others(monkeypatch):
    """All others are 150 nats below their reference, and alone once it is forgotten."""
    rare = counted(monkeypatch)
    query, key, value = one_key_above(0, TRUNK["causal"])
    place = np.arange(LENGTH)[:, None, None]
    key = tf.where(place == 0, key, 1.9 * key)
    decay = np.full((2, LENGTH, 1), -0.05, "float32")
    decay[0, 33] = -1000.0  # of the first example alone
    inputs = query, key, value, tf.constant(decay)
    found = Case(True).ours(*inputs)
    flags = np.concatenate(rare, 1)
    assert flags[0, 0] and not flags[1, 0]
    twin = Case(True).twin(*(tf.cast(x, tf.float64) for x in inputs))
    np.testing.assert_allclose(found, twin, atol=1e-3)


@pytest.mark.parametrize("window", [None, 5])
def test_no_later_key_or_gate_moves_a_bit(window):
    case = Case(True, window)
    inputs = [tf.cast(x, tf.float32) for x in case.inputs(4.0)]
    number = np.arange(LENGTH)[:, None]
    before = case.ours(*inputs)
    inputs[1] *= np.where(number[:, None] == 100, 50.0, 1.0).astype("float32")
    inputs[3] = tf.where(number >= 101, -3.0, inputs[3])
    after = case.ours(*inputs)
    np.testing.assert_array_equal(before[:, :64], after[:, :64])
    assert np.abs(before - after)[:, 101:].max() > 1e-3


def test_gates_of_65536_tokens_add_up_nowhere():
    """The last queries see what the last keys give them, to float32's precision."""
    length, last, gate = 65_536, 1024, float(np.log(1 / (1 + np.exp(-2.0))))
    query, key, value = qkv(1, length, length, 1, dtype="float32")
    decay = tf.fill((1, length, 1), gate)
    case = Case(True)
    found = tf.function(case.ours)(query, key, value, decay)[:, -64:]
    ends = (tf.cast(x[:, -last:], "float64") for x in (query, key, value, decay))
    np.testing.assert_allclose(found, case.twin(*ends)[:, -64:], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, causal, jit_compile",
    [
        (Case, True, True),
        (Case, False, False),
        (Exact, False, True),
        (Exact, True, False),
    ],
)
def test_graphs_of_unknown_sizes_and_xla(kind, causal, jit_compile):
    case = kind(causal, 5)
    specs = [
        tf.TensorSpec(
            [None, None, *x.shape[2:]] if x.shape.rank > 1 else x.shape, x.dtype
        )
        for x in case.inputs()
    ]

    def gradients(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = case.ours(*inputs)
            loss = tf.reduce_sum(output**2)
        return output, *tape.gradient(loss, inputs)

    graph = tf.function(
        gradients,
        input_signature=None if jit_compile else specs,
        jit_compile=jit_compile,
        autograph=False,
    )
    inputs = case.inputs()
    for x, y in zip(graph(*inputs), gradients(*inputs), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "length, causal, window, packed",
    [
        (0, True, 5, False),
        (0, False, None, True),
        (1, True, None, True),
        (1, False, 5, False),
        (2, True, 5, True),
        (2, False, None, False),
        (2, False, 5, True),
    ],
)
def test_short_sequences(length, causal, window, packed):
    case = Case(causal, window, packed)
    inputs = [x[:, :length] if len(x.shape) > 1 else x for x in case.inputs()]
    if length:
        case.check(inputs)
    else:
        assert case.ours(*inputs).shape[1] == 0


@pytest.mark.parametrize("hides", [-np.inf, -60000.0])
def test_decays_in_half_precision(hides):
    query, key, value = qkv(1, 20, 20, 1, dtype="float32")
    decay = np.zeros((1, 20, 1))
    decay[0, 10] = hides
    kernel, visible = softmax_kernel(), ops.Visibility(causal=True)
    found, _ = linear_attention(
        query, key, value, kernel, visible, decay=tf.constant(decay, "float16")
    )
    late = (x[:, 10:] for x in (query, key, value))
    expected, _ = linear_attention(*late, kernel, visible)
    np.testing.assert_allclose(found[:, 10:], expected, atol=1e-5)


def test_a_decay_of_other_keys_than_queries_is_refused():
    query, key, value = qkv(1, 4, 6, 1, dtype="float32")
    decay = tf.zeros((1, 6, 1))
    with pytest.raises(ValueError, match="one key for each query.*Received: query"):
        ops.bidirectional_attention(query, key, value, softmax_kernel(), decay=decay)


def test_errors_say_what_is_wanted():
    query, key, value = qkv(1, 6, 6, 1, dtype="float32")
    given = query, key, value, softmax_kernel()
    visible = ops.Visibility(causal=True)
    with pytest.raises(ValueError, match=r"\(1, 6, 1\). Received: float32 of shape"):
        linear_attention(*given, visible, decay=tf.zeros((1, 6)))
    with pytest.raises(ValueError, match="must be floats.*Received: int32"):
        linear_attention(*given, visible, decay=tf.zeros((1, 6, 1), "int32"))
    _, state = linear_attention(*given, visible, 2)
    with pytest.raises(ValueError, match=r"DecayingState \(running_max.*decay\)"):
        linear_attention(*given, visible, 2, None, state, decay=tf.zeros((1, 6, 1)))
    _, state = linear_attention(*given, visible, 2, decay=tf.zeros((1, 6, 1)))
    with pytest.raises(ValueError, match="must be a WindowedState"):
        linear_attention(*given, visible, 2, None, state)
    local = query, key, value, 2, visible
    _, state = ops.local_attention(*local)
    with pytest.raises(ValueError, match="must be a DecayingRecent"):
        ops.local_attention(*local, state=state, decay=tf.zeros((1, 6, 1)))
    _, state = ops.local_attention(*local, decay=tf.zeros((1, 6, 1)))
    with pytest.raises(ValueError, match="must be a Recent"):
        ops.local_attention(*local, state=state)
