"""Training that recomputes long sequences in chunks, to save memory.

The terms of this folder:

- A *chunk* is a part of the sequence: some tokens of every example.
- A model is a *chain* of *links*: its embedding, its blocks, and its read-out. A link
  takes a chunk of the stream and its own state, and returns the next of both.
- The *stream* goes from link to link. It begins with the inputs. Then it is
  `(x, extra)`: the hidden vectors, and tensors that the embedding passes to the head.
- The *sides* go to every link unchanged, one chunk with each chunk of the stream: the
  mask, the targets, and the positions of tokens in the whole sequence.
- *Given* tensors are the same for all chunks of a link, such as the state of all keys
  in the second scan of a bidirectional block.
- A *scan* runs some links over one chunk after another. It keeps the incoming stream
  and the states between chunks, and recomputes the rest for the gradient.
- A bidirectional block takes two scans: the first puts keys into a state, the second
  answers queries. With a window of near keys, the first goes from the last chunk to the
  first and returns for each token the sums over later tokens; the second adds the sums
  over earlier tokens.
- A *pass* cuts the chain into scans, which decides what memory is kept: `"block"` keeps
  one stream for each block, `"network"` only the inputs.

`passes` cuts chains into scans, and `token_training` has the model whose `fit` and
`evaluate` use them.
"""

from keras_performer.recompute import passes
from keras_performer.recompute.token_training import TokenTraining, WithTargets

__all__ = ["TokenTraining", "WithTargets", "passes"]
