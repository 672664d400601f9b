"""Our layers beside the same ones of other libraries: their numbers, and their time.

    python -m benchmarks.peers [--only numbers|times] [--lengths 1024 4096] ...

- `__main__.py`: the command.
- `cases.py`: which settings are compared, whether they agree, and why not.
- `timed.py`: which steps are timed.
- `arrays.py`: inputs and weights of a case, and how far two results are apart.
- `numbers.py`: has both sides compute a case, and says what came out.
- `environments.py`: where each side runs.
- `programs.py`: a side's layer as a program of `benchmarks.worker`.
- `ours.py`, `keras_own.py`, `model_garden.py`, `hugging_face.py` and `hub.py`: the
  layers, a file for each environment, with `start(threads)` and `program(case)`.
- `tables.py`: the results as Markdown.

A case of `benchmarks.worker` is here a dict:

- layer: a name that the file of the side knows
- options: dict, arguments of that layer in the words of its library
- part: "numbers" (reads the arrays of the file `inputs`, writes the output and all
  gradients to the file `outputs`) or "layer" (a step of `length` tokens, to time)
- sizes: dict of width, num_heads and key_dim
"""
