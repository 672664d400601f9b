"""One file for each environment: `start(threads)` and `program(case)`.

`program` returns a function without arguments, which runs the program and waits for the
result. A case is a dict; its "part" names the program:

- "layer": a training step of a layer with input and output width 512 in float32.
  contender: a name in `benchmarks.measure`; form: "bidirectional" or "causal"; length:
  tokens.
- "decoding", "generate": see `benchmarks/decoding.py` and `benchmarks/generation.py`.
"""

WIDTH, NUM_HEADS, KEY_DIM, NUM_RANDOM_FEATURES = 512, 8, 64, 256
