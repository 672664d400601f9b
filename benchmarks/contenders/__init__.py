"""One file for each environment: `start(threads)` and `program(case)`.

A case is a dict:

- contender: a name of `benchmarks.plan`
- form: "bidirectional" or "causal"
- mode: "graph" (eager in PyTorch) or "xla" (`torch.compile` is not measured)
- part: "layer" (width 512 in and out), or "attention" alone, from projected heads
- step: "forward", or "training" (forward, and gradients of input and weights)
- length: tokens
- dtype: "float32" or "bfloat16" (mixed: weights stay float32)

`program` returns two functions without arguments: one that traces, and one that runs
a step and returns when its result is there.

Peers have `attend(case)` too: attention alone, of one head. A case is then a dict of
contender, features, seed, and paths: inputs, an .npz file of query, key and value of
shape `(L, H)`, and output, the .npy file that is written.
"""

WIDTH, NUM_HEADS, KEY_DIM, NUM_RANDOM_FEATURES = 512, 8, 64, 256
MATMUL_SIZE = 2048  # rows and columns of the product that measures the machine
CHUNK = 64  # tokens of a chunk of KernelAttention's causal form, where it is timed


def in_chunks(length, chunk=CHUNK):
    """Arguments of KernelAttention, causal, with a window as long as the sequence."""
    return {
        "use_causal_windowed": True,
        "causal_chunk_length": chunk,
        "causal_window_length": -(-length // chunk),
    }
