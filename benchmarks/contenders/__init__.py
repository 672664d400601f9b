"""One file for each environment: `start(threads)` and `program(case)`.

`program` returns two functions without arguments: one traces the program, and one runs
it and waits for the result. A case is a dict; its "part" names the program:

- "layer": a step of a layer with input and output width 512. contender: a name in
  `benchmarks.measure`; form: "bidirectional" or "causal"; mode: "graph" (eager in
  PyTorch) or "xla"; step: "forward", or "training" (forward, and gradients of input and
  weights); length: tokens; dtype: "float32" or "bfloat16" (mixed: float32 weights).
- "decoding", "generate": see `benchmarks/decoding.py` and `benchmarks/generation.py`.
"""

WIDTH, NUM_HEADS, KEY_DIM, NUM_RANDOM_FEATURES = 512, 8, 64, 256
MATMUL_SIZE = 2048  # rows and columns in the product that measures the machine
