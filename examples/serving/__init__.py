"""A small HTTP service of an exported causal model. It does not import this package.

`app` speaks HTTP, `requests` says what may be asked, `batching` lets all sessions take
their steps together, `model` runs the signatures, `sampling` draws tokens, and
`vocabulary` says what tokens mean. `train` makes a model to serve.
"""
