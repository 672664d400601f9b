"""Training that computes again instead of keeping: memory for sequences that are long.

The words of this folder:

- A *chunk* is a piece of the sequence, some tokens of every example.
- A model is a *chain* of *links*: its embedding, its blocks, and what reads them out. A
  link takes a chunk of the stream and its own state, and returns the next of both.
- The *stream* is what goes from link to link: inputs at first, then `(x, extra)`, the
  hidden vectors and what the embedding hands round the blocks to the head.
- The *sides* go to every link unchanged, a chunk of them with each chunk of the stream:
  the mask, the targets, and the positions of tokens that only the whole knows.
- What is *given* to a link is the same for all chunks, such as the keys of the whole
  sequence in the second pass of a block that is not causal.
- A *scan* runs some links over chunk after chunk. It keeps the stream that goes in and
  the states between chunks, and computes what is inside a chunk again for the gradient.
- A block that is not causal takes two scans: one in which keys go into a state, one in
  which queries are answered. With a window of near keys the first goes from the last
  chunk to the first and tells each token what the tokens after it add, and the second
  adds the tokens before it.
- A *pass* says how the chain is cut into scans, and so what is kept: `"block"` one
  stream for each block, `"network"` none but the inputs.

`passes` cuts chains into scans, and `token_training` is the model whose `fit` and
`evaluate` go through them.
"""

from keras_performer.recompute import passes
from keras_performer.recompute.token_training import TokenTraining, WithTargets

__all__ = ["TokenTraining", "WithTargets", "passes"]
