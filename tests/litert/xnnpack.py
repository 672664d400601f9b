"""The fault of XNNPACK (benchmarks/notes/litert.md) in the smallest program.

python -m tests.litert.xnnpack [--interpreters 60] [--batch 16]

It converts a call of `ops.windowed_attention` for one token, and counts interpreters
whose numbers differ from TensorFlow's in one of a few calls. The count depends on the
layout of memory. It may be 0 in a process that has traced and converted, so each case
runs in a new process.
"""

import argparse
import multiprocessing
import tempfile

import numpy as np
import tensorflow as tf

from keras_performer import ops

WINDOW, NUM_HEADS, KEY_DIM, NUM_RANDOM_FEATURES = 3, 2, 4, 6
CALLS = 4


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--interpreters", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()
    calls = [some_inputs(options.batch, seed) for seed in range(CALLS)]
    outputs = [tf.nest.map_structure(np.array, step(**inputs)) for inputs in calls]
    shapes = {name: x.shape for name, x in calls[0].items()}
    one_size = converted(shapes)
    any_size = converted({name: (None, *shape[1:]) for name, shape in shapes.items()})
    for case, file, xnnpack in [
        ("XNNPACK, a batch of any size", any_size, True),
        ("XNNPACK, a batch of one size", one_size, True),
        ("LiteRT's own kernels, a batch of any size", any_size, False),
    ]:
        arguments = file, xnnpack, options.interpreters, calls, outputs
        with multiprocessing.get_context("spawn").Pool(1) as fresh:
            wrong = fresh.apply(wrong_calls, arguments)
        print(f"{case}: {len(wrong)} of {options.interpreters} interpreters wrong")
        print(f"  first wrong calls: {sorted(set(wrong)) or 'none'}", flush=True)


def step(query, new_key, new_value, **state):
    """Returns one token's attention, and the next state."""
    # an array, stored as a constant, as LiteRT cannot sample the matrix
    matrix = np.random.default_rng(0).normal(size=(NUM_RANDOM_FEATURES, KEY_DIM))
    output, state = ops.windowed_attention(
        query,
        new_key,
        new_value,
        ops.ExponentialKernel(matrix.astype("float32")),
        WINDOW,
        key_mask=ops.Visibility(causal=True),
        state=ops.WindowedState(**state),
    )
    return {"output": output, **_arrays(state)}


def _arrays(state):
    """Returns the entries of a state without a decay."""
    return {name: x for name, x in state._asdict().items() if x is not None}


def some_inputs(batch, seed):
    """Returns a token and a state, as arrays."""
    rng = np.random.default_rng(seed)
    state = ops.initial_state(batch, NUM_HEADS, NUM_RANDOM_FEATURES, KEY_DIM)
    state = ops.with_recent_keys(state, WINDOW, KEY_DIM)
    names = "query", "new_key", "new_value"
    inputs = {name: rng.normal(size=(batch, 1, NUM_HEADS, KEY_DIM)) for name in names}
    # sums of positive features are positive
    inputs |= {name: rng.uniform(1, 2, x.shape) for name, x in _arrays(state).items()}
    inputs = {name: x.astype("float32") for name, x in inputs.items()}
    return {**inputs, "seen": np.ones((batch, WINDOW), bool)}


def converted(shapes):
    """Returns `step` for inputs of these shapes, as a LiteRT file."""
    specs = {
        name: tf.TensorSpec(shape, "bool" if name == "seen" else "float32", name)
        for name, shape in shapes.items()
    }
    # a new `tf.function`, as one traced for any size would also serve a fixed size
    signature = tf.function(step).get_concrete_function(**specs)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(tf.Module(), folder, {"step": signature})
        converter = tf.lite.TFLiteConverter.from_saved_model(
            folder, signature_keys=["step"]
        )
        return converter.convert()


def wrong_calls(file, xnnpack, interpreters, calls, outputs):
    """Returns the number of the first wrong call of each interpreter that has one."""
    kinds = tf.lite.experimental.OpResolverType
    kind = kinds.AUTO if xnnpack else kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    wrong = []
    for _ in range(interpreters):
        interpreter = tf.lite.Interpreter(
            model_content=file, experimental_op_resolver_type=kind
        )
        run = interpreter.get_signature_runner("step")
        for number, (inputs, expected) in enumerate(zip(calls, outputs), start=1):
            found = run(**inputs)
            if not all(np.allclose(found[x], expected[x], atol=1e-4) for x in found):
                wrong.append(number)
                break
    return wrong


if __name__ == "__main__":
    main()
