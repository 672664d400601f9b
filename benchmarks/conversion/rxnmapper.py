"""RXNMapper 0.4.3: ALBERT of chemical reactions, under the MIT licence.

Schwaller et al. 2021, Science Advances 7 (15), eabe4166: 12 layers of 8 heads of 32,
which share their weights.
"""

import ast
import json
import re

from benchmarks.conversion import bert, wheels
from benchmarks.conversion.pretrained import Pretrained, with_token_types
from benchmarks.conversion.torch_files import read_state_dict

PACKAGE, VERSION = "rxnmapper", "0.4.3"
FOLDER = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
# Packages under the MIT licence whose descriptions have reactions, too: 27 MB in all.
FURTHER = ("drfp", "0.3.7"), ("rxn4chemistry", "1.15.0"), ("syntemp", "1.0.3")
# Shorter ones have hardly a token that a window does not see.
FEWEST_TOKENS = 41
# all blocks share one
BLOCK = "albert.encoder.albert_layer_groups.0.albert_layers.0"
LAYERS = {
    "query": "attention.query",
    "key": "attention.key",
    "value": "attention.value",
    "attention_output": "attention.dense",
    "attention_norm": "attention.LayerNorm",
    "feed_forward": "ffn",
    "feed_forward_output": "ffn_output",
    "output_norm": "full_layer_layer_norm",
}


def load(folder):
    """Returns the `Pretrained`; its wheel is downloaded into a folder if missing."""
    config, weights, vocabulary, source, *texts = wheels.read(
        wheels.download(PACKAGE, VERSION, folder),
        f"{FOLDER}/config.json",
        f"{FOLDER}/pytorch_model.bin",
        f"{FOLDER}/vocab.txt",
        "rxnmapper/smiles_utils.py",
        "tests/test_mapper.py",
        f"{PACKAGE}-{VERSION}.dist-info/METADATA",
    )
    config = bert.config_of(json.loads(config))
    lines = vocabulary.decode().splitlines()
    tokens = {token: index for index, token in enumerate(lines)}
    pattern = constant(source, "SMI_REGEX_PATTERN")

    def sequences(texts):
        found = reactions("".join(text.decode() for text in texts))
        found = [tokenize(reaction, pattern, tokens) for reaction in found]
        return [tokens for tokens in found if len(tokens) >= FEWEST_TOKENS]

    def further():
        return sequences(wheels.description(*package, folder) for package in FURTHER)

    return Pretrained(
        name=f"{PACKAGE} {VERSION}",
        config=config,
        tensors=with_token_types(read_state_dict(weights), "albert.embeddings"),
        names=names(config.num_layers),
        sequences=sequences(texts),
        further=further,
        mask_token=tokens["[MASK]"],
        exact_nll=0.247,
    )


def names(num_layers):
    """PyTorch's names by those of the layers."""
    return {
        "token_embedding": "albert.embeddings.word_embeddings",
        "position_embedding": "albert.embeddings.position_embeddings",
        "embedding_norm": "albert.embeddings.LayerNorm",
        "embedding_to_hidden": "albert.encoder.embedding_hidden_mapping_in",
        "head": "predictions.dense",
        "head_norm": "predictions.LayerNorm",
        "logits": "predictions.decoder",
        **bert.names_in_blocks(num_layers, BLOCK, LAYERS),
    }


def constant(source, name):
    """The value of a constant in the source of a module, which is not run."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise ValueError(f"The module must define {name}. Received: one without it.")


def reactions(text):
    """Reactions that stand in quotation marks, without those whose atoms are mapped."""
    quoted = re.findall(r"""["']([^"',\s]+>>[^"',\s]+)["']""", text)
    return [reaction for reaction in dict.fromkeys(quoted) if ":" not in reaction]


def tokenize(text, pattern, tokens):
    unknown = tokens["[UNK]"]
    middle = [tokens.get(token, unknown) for token in re.findall(pattern, text)]
    return [tokens["[CLS]"], *middle, tokens["[SEP]"]]
