"""A small HTTP service of an exported causal model, without `keras_performer`.

`app` answers HTTP requests, `requests` checks them, `batching` runs each step for all
sessions together, `model` calls the model's signatures, `sampling` samples tokens, and
`vocabulary` stores the meaning of tokens. `train` makes a model to serve, and alone
needs `keras_performer`.
"""
