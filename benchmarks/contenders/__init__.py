"""One file for each environment: `start(threads)` and `program(case)`.

`program` returns two functions without arguments: one that traces, and one that runs
the program and returns when its result is there. A case is a dict; its "part" says what
the program is:

- "layer": a step of a layer, of width 512 in and out. contender: a name of
  `benchmarks.measure`; form: "bidirectional" or "causal"; mode: "graph" (eager in
  PyTorch) or "xla"; step: "forward", or "training" (forward, and gradients of input and
  weights); length: tokens; dtype: "float32" or "bfloat16" (mixed: float32 weights).
  `benchmarks.peers` has layer, options and sizes in the place of contender and form.
- "numbers": reads the arrays of the file `inputs`, and writes the output and all
  gradients of a layer to the file `outputs`.
- "decoding", "generate": see `benchmarks/decoding.py` and `benchmarks/generation.py`.

Some have `attend(case, query, key, value)` too: attention alone, of one head, which
returns an array of arrays `(L, H)`. A case has contender, features and seed then.
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
