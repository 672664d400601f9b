"""One file for each environment: `start(threads)` and `program(case)`.

`program` returns two functions without arguments: one traces the program, and one runs
it and waits for the result. A case is a dict; its "part" names the program:

- "layer": a step of a layer with input and output width 512. contender: a name in
  `benchmarks.measure`; form: "bidirectional" or "causal"; mode: "graph" (eager in
  PyTorch) or "xla"; step: "forward", or "training" (forward, and gradients of input and
  weights); length: tokens; dtype: "float32" or "bfloat16" (mixed: float32 weights).
  `benchmarks.peers` has layer, options and sizes instead of contender and form.
- "numbers": reads arrays from the file `inputs`, and writes the output and all
  gradients of a layer to the file `outputs`.
- "decoding", "generate": see `benchmarks/decoding.py` and `benchmarks/generation.py`.
"""

WIDTH, NUM_HEADS, KEY_DIM, NUM_RANDOM_FEATURES = 512, 8, 64, 256
MATMUL_SIZE = 2048  # rows and columns in the product that measures the machine
CHUNK = 64  # tokens of a chunk when causal KernelAttention is timed


def in_chunks(length, chunk=CHUNK):
    """Returns arguments for causal KernelAttention with a window over all tokens."""
    return {
        "use_causal_windowed": True,
        "causal_chunk_length": chunk,
        "causal_window_length": -(-length // chunk),
    }
