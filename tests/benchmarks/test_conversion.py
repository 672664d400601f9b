"""Trained models are read as in their files, and evaluated as documented."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from scipy.special import erf

from benchmarks import runner
from benchmarks.conversion import __main__ as command
from benchmarks.conversion import bert, scores, small, sources
from benchmarks.conversion.sources import Pretrained
from benchmarks.learning import models
from keras_performer import convert_to_performer

SIZES = dict(vocabulary_size=7, max_length=13, num_layers=2, intermediate_dim=11)
CONFIGS = {
    sources.names_of_bert: dict(embedding_dim=6, hidden_dim=6, num_heads=2),
    sources.names_of_albert: dict(embedding_dim=5, hidden_dim=6, num_heads=3),
}
MASK = 4


def random_tensors(config, names):
    """Returns random tensors by PyTorch's names; layers may share a name."""
    random = np.random.default_rng(0)
    hidden = config.hidden_dim
    shapes = {
        "token_embedding": (config.vocabulary_size, config.embedding_dim),
        "position_embedding": (config.max_length, config.embedding_dim),
        "embedding_to_hidden": (hidden, config.embedding_dim),
        "feed_forward": (config.intermediate_dim, hidden),
        "feed_forward_output": (hidden, config.intermediate_dim),
        "head": (config.embedding_dim, hidden),
        "logits": (config.vocabulary_size, config.embedding_dim),
        "embedding_norm": (config.embedding_dim,),
        "head_norm": (config.embedding_dim,),
        "attention_norm": (hidden,),
        "output_norm": (hidden,),
    }
    tensors = {}
    for ours, theirs in names.items():
        shape = shapes.get(ours.rstrip("_0123456789"), (hidden, hidden))
        tensors[f"{theirs}.weight"] = random.normal(size=shape).astype(np.float32)
        tensors[f"{theirs}.bias"] = random.normal(size=shape[:1]).astype(np.float32)
    return tensors


def tiny(names_of):
    config = bert.Config(**SIZES, **CONFIGS[names_of])
    names = names_of(SIZES["num_layers"])
    sequences = [[2, 1, 5, 6, 4, 1, 6, 3], [2, 6, 6, 1, 3]]
    return Pretrained(
        "tiny", config, random_tensors(config, names), names, sequences, MASK
    )


def twin(source, tokens, softmax_of=lambda logits: logits):
    """Computes the logits `(T, vocabulary)` of one sequence in NumPy."""
    config, tensors = source.config, source.tensors

    def dense(name, x):
        theirs = source.names[name]
        return x @ tensors[f"{theirs}.weight"].T + tensors[f"{theirs}.bias"]

    def normalized(name, x):
        theirs = source.names[name]
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + config.epsilon)
        return x * tensors[f"{theirs}.weight"] + tensors[f"{theirs}.bias"]

    def gelu(x):
        return x * (1 + erf(x / np.sqrt(2))) / 2

    embeddings = [
        tensors[f"{source.names[name]}.weight"].astype(np.float64)
        for name in ("token_embedding", "position_embedding")
    ]
    x = embeddings[0][tokens] + embeddings[1][: len(tokens)]
    x = normalized("embedding_norm", x)
    if "embedding_to_hidden" in source.names:
        x = dense("embedding_to_hidden", x)
    for i in range(config.num_layers):
        heads = []
        q, k, v = (
            np.split(dense(f"{name}_{i}", x), config.num_heads, axis=-1)
            for name in ("query", "key", "value")
        )
        for query, key, value in zip(q, k, v):
            logits = softmax_of(query @ key.T / np.sqrt(query.shape[-1]))
            weights = np.exp(logits - logits.max(-1, keepdims=True))
            heads.append(weights / weights.sum(-1, keepdims=True) @ value)
        attended = dense(f"attention_output_{i}", np.concatenate(heads, -1))
        x = normalized(f"attention_norm_{i}", x + attended)
        wide = gelu(dense(f"feed_forward_{i}", x))
        narrow = dense(f"feed_forward_output_{i}", wide)
        x = normalized(f"output_norm_{i}", x + narrow)
    return dense("logits", normalized("head_norm", gelu(dense("head", x))))


def check_model(source, model, softmax_of=lambda logits: logits):
    """Compares each sequence of a padded batch with its twin without padding."""
    long, short = source.sequences
    padded = [long, short + [0] * (len(long) - len(short))]
    logits = model(np.array(padded, np.int32)).numpy()
    for row, tokens in zip(logits, source.sequences):
        expected = twin(source, tokens, softmax_of)
        np.testing.assert_allclose(row[: len(tokens)], expected, rtol=0, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("names_of", CONFIGS)
def test_the_model_is_that_of_its_paper(names_of):
    source = tiny(names_of)
    # large enough to show normalization by n - 1 or another gelu
    assert np.abs(twin(source, source.sequences[0])).max() > 1
    check_model(source, source.model())
    made = {row.name: row.make for row in scores.ROWS + scores.FURTHER}
    check_model(source, made["mean of V"](source), np.zeros_like)
    # windows are longer than the sequences, so these rows are exact
    for name in ("window alone", "window + favor+", "window + taylor"):
        check_model(source, made[name](source))
    check_model(source, made["taylor"](source), lambda x: np.log(1 + x + x**2 / 2))


def test_what_is_read_of_packages():
    position, of_type = np.arange(6.0).reshape(3, 2), np.array([[10, 20], [5, 5]])
    tensors = {"e.position_embeddings.weight": position}
    tensors["e.token_type_embeddings.weight"] = of_type
    found = sources.with_token_types(tensors, "e")["e.position_embeddings.weight"]
    assert found.tolist() == [[10, 21], [12, 23], [14, 25]]
    saved = {
        **{"vocab_size": 25, "max_position_embeddings": 512, "hidden_size": 64},
        **{"intermediate_size": 256, "num_hidden_layers": 8, "hidden_act": "gelu"},
        **{"num_attention_heads": 4, "layer_norm_eps": 1e-12, "embedding_size": 16},
    }
    assert bert.config_of(saved) == bert.Config(25, 512, 16, 64, 256, 8, 4, 1e-12)
    with pytest.raises(ValueError, match="hidden_act must be 'gelu'.*'gelu_new'"):
        bert.config_of({**saved, "hidden_act": "gelu_new"})
    text = """rxns = ["CC>>C", 'N.C>>NC'] # "CC>>C" again
        mapped = "[CH3:1]>>[CH3:1]" and "C >> C" """
    assert sources.reactions(text) == ["CC>>C", "N.C>>NC"]
    chain = "ACDEFGHIKL" * 10
    text = f'["{chain}", "ACDEF"] "__{chain}_", "{chain[:-1]}W", "{chain}"'
    assert sources.antibodies(text)[2:] == [chain, f"{chain[:-1]}W"]
    tokens = {"[CLS]": 2, "[SEP]": 3, "[UNK]": 1, "A": 5, "C": 6}
    assert sources.tokenize("ACX", tokens) == [2, 5, 6, 1, 3]


class Constant:
    """Model that gives all tokens the same logits."""

    layers = ()

    def __init__(self, logits):
        self.logits = np.array(logits, np.float32)

    def __call__(self, tokens, training):
        assert training is False
        return tf.constant(np.tile(self.logits, (*tokens.shape, 1)))


def long_sequences():
    """Returns two similar sequences and a different one."""
    random = np.random.default_rng(0)
    first, other = random.integers(5, 25, (2, 61)).tolist()
    return [first, first[:30] + first[32:], other]


def made_up(sequences):
    config = bert.Config(25, 70, 8, 8, 8, num_layers=1, num_heads=2)
    return Pretrained("tiny 1.0", config, {}, {}, sequences, MASK)


def test_each_token_but_the_ends_is_hidden_in_one_copy():
    [tokens, _, _] = long_sequences()
    given = scores.examples([tokens], MASK, seed=1)
    assert given.inputs.shape == (4, 61)
    assert given.masked.sum(0).tolist() == [0, *[1] * 59, 0]
    assert set(given.masked.sum(1)) == {14, 15}
    assert (given.inputs[given.masked] == MASK).all()
    np.testing.assert_array_equal(given.targets, [tokens] * 4)
    np.testing.assert_array_equal(
        given.inputs[~given.masked], given.targets[~given.masked]
    )


def test_sequences_that_have_much_in_common_are_one_family():
    first, alike, other = long_sequences()
    assert scores.families([first, other, alike, other]).tolist() == [0, 1, 0, 1]
    # also through a third sequence
    half = alike[:20] + other[20:30] + alike[30:]
    chain = [first, half[:15] + other[:9] + half[24:], half]
    assert scores.families(chain[::2]).tolist() == [0, 0]
    assert len(set(scores.families(chain))) == 1


def test_losses_are_those_of_the_hidden_tokens():
    probabilities = np.array([0.0, 0.1, 0.2, 0.3, 0.4])
    with np.errstate(divide="ignore"):
        model = Constant(np.log(probabilities) + 3)
    targets = np.array([[1, 2, 3, 3], [2, 2, 3, 0]])
    inputs = np.array([[1, 4, 3, 4], [4, 2, 3, 0]])
    given = scores.Examples(inputs, targets, inputs != targets, np.array([5, 6]))
    expected = -np.log([0.2, 0.3, 0.2])
    np.testing.assert_allclose(scores.losses(model, given), expected, rtol=1e-6)
    assert given.families_of_tokens().tolist() == [5, 5, 6]
    assert given.of(given.families == 6).inputs.tolist() == [[4, 2, 3, 0]]


def test_standard_errors_count_clusters_not_tokens():
    values = np.array([1.0, 2.0, 3.0, 6.0])
    # each value is a cluster: the usual error, from deviations -2, -1, 0, 3
    alone = scores.standard_error(values, np.arange(4))
    assert math.isclose(alone, math.sqrt(14 / 3 / 4))
    # two clusters: sums of deviations -3 and 3
    pairs = scores.standard_error(values, np.array([7, 7, 2, 2]))
    assert math.isclose(pairs, math.sqrt(2 * 18) / 4)
    assert scores.standard_error(values, np.zeros(4)) == math.inf
    exact, families = np.array([1.0, 2.0, 3.0]), np.arange(3)
    assert scores.paired(exact + 0.5, exact, families) == (0.5, 0.0)
    # from differences 2, 0, -2
    lost, error = scores.paired(exact[::-1], exact, families)
    assert lost == 0 and math.isclose(error, 2 / math.sqrt(3))


def test_rows_are_fitted_to_other_families():
    sequences = long_sequences()
    seen = []

    def fit(model, source, tokens):
        assert model == f"that of {source.name}"
        seen.append(tokens)
        return Constant(np.eye(25)[0] * len(seen))

    row = scores.Row("fitted", lambda source: f"that of {source.name}", fit=fit)
    given = scores.examples(sequences, MASK, scores.SEED)
    losses = scores.losses_of(row, made_up(sequences), given)
    # the first family, of two sequences, is fitted to the third one, and the reverse
    assert [tokens.shape for tokens in seen] == [(5, 61), (10, 61)]
    assert (seen[0][0] == sequences[2]).all()
    assert not any((tokens == sequences[2]).all() for tokens in seen[1])
    assert [tokens[0] for tokens in seen[1]] == [sequences[0][0]] * 10
    of_models = np.log(np.exp([1, 2]) + 24)
    expected = of_models[(given.families_of_tokens() == 1).astype(int)]
    np.testing.assert_allclose(losses, expected, rtol=1e-6)


def test_the_command(tmp_path, monkeypatch):
    made = made_up(long_sequences())
    monkeypatch.setitem(command.SOURCES, "antiberty", lambda folder: made)
    monkeypatch.setattr(Pretrained, "model", lambda source: Constant(np.zeros(25)))
    flags = ["--models", "antiberty", "--workers", "0"]
    flags += ["--output", str(tmp_path), "--rows", "mean of V"]
    command.main(flags)
    text = (tmp_path / "tables.md").read_text()
    # 25 tokens are equally likely
    assert f"| exact | {math.log(25):.3f} | +0.000 | 0.000 |" in text
    assert "| mean of V | 3.219 | +0.000 |" in text and "| window alone" not in text
    assert "175 masked tokens of 3 sequences of 59 to 61 tokens" in text
    # a model that was read wrongly ends the command
    made = dataclasses.replace(made, exact_nll=3.217)
    with pytest.raises(ValueError, match="weights or tokens were read wrongly"):
        command.main(flags)


CASE = small.cases()["recall"]


@pytest.mark.slow
def test_controls_of_small_models_are_what_they_are_called():
    exact = models.make_model(CASE.task, models.EXACT, CASE.key_dim, small.SEED)
    tokens = CASE.task.draw(np.random.default_rng(0), 1)[0]
    first = itertools.islice(small.controls(CASE, exact, num_steps=1), 3)
    found = {name: model for name, model, *_ in first}
    same, mean, window = (np.asarray(model(tokens)) for model in found.values())
    np.testing.assert_array_equal(same, exact(tokens))
    options = dict(exact_window=CASE.task.window, feature_map="taylor")
    both, _ = convert_to_performer(exact, num_random_features=None, **options)
    assert np.abs(both(tokens) - window).max() > 1e-3
    np.testing.assert_allclose(
        small.without_far_keys(both)(tokens), window, rtol=1e-4, atol=1e-4
    )
    x = np.random.default_rng(1).normal(size=(1, 7, 64)).astype("float32")
    attention = found[small.MEAN].blocks[0].attention
    _, weights = attention(x, return_attention_scores=True)
    equal = np.tri(7) / np.arange(1, 8)[:, np.newaxis]
    np.testing.assert_allclose(weights[0], np.broadcast_to(equal, (4, 7, 7)), atol=1e-6)


def test_answers_of_small_models_are_those_of_the_logits():
    model = models.make_model(CASE.task, models.WITHOUT, CASE.key_dim, small.SEED)
    result = small.asked(CASE, "none", model, steps=3, seconds=2.0)
    bits, right, asked_for = [], 0, 0
    for inputs, targets, weights in CASE.task.held_out():
        logits = np.asarray(model(inputs)).astype("float64")
        logs = scipy.special.log_softmax(logits, -1)
        of_targets = np.take_along_axis(logs, targets[..., np.newaxis], -1)[..., 0]
        bits += list(-(of_targets * weights).sum(1) / weights.sum(1) / np.log(2))
        right += ((logits.argmax(-1) == targets) * weights).sum()
        asked_for += weights.sum()
    assert result.accuracy == pytest.approx(right / asked_for)
    np.testing.assert_allclose(result.bits, bits, rtol=1e-5)


def test_the_page_of_a_small_model_pairs_what_is_lost(tmp_path):
    exact = small.Result("exact", 1.0, [1.0, 2.0, 3.0])
    other = small.Result("other", 0.5, [1.5, 2.1, 3.9], seconds=7.0, steps=200)
    runner.save(tmp_path / "recall-controls.json", [exact, other])
    runner.save(tmp_path / "recall-softmax.json", [other])
    model = models.make_model(CASE.task, models.EXACT, CASE.key_dim, small.SEED)
    model.save_weights(tmp_path / "recall.weights.h5")
    flags = "--cases recall --feature-maps softmax --steps 200 --output"
    small.main([*flags.split(), str(tmp_path)])
    text = (tmp_path / "recall.md").read_text()
    assert "| exact | 0 | 0 | 1.0000 | 2.000 |  |  | 0 |" in text
    # differences 0.5, 0.1 and 0.9
    assert text.count("| other | 200 | 0 | 0.5000 | 2.500 | +0.500 | 0.231 | 7 |") == 2
    assert "--steps 200 --further-steps 10 20 40" in text
