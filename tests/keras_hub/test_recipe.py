"""The recipe that converts a BERT, at small size."""

import numpy as np
import pytest

from tests.docs import test_recipes as recipes
from tests.docs.test_recipes import clean  # noqa: F401

SIZES = {"VOCABULARY": 31, "LAYERS": 2, "HEADS": 2, "WIDTH": 8, "LENGTH": 80}


# KerasHub's models have a `compile` that Keras cannot repeat, and their `fit` makes a
# data set of arrays.
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")
@pytest.mark.filterwarnings("ignore:`compile..` was not called:UserWarning")
def test_convert_bert(clean):  # noqa: F811
    code = "\n".join(recipes.code_of(recipes.NEEDS_KERAS_HUB, part) for part in (0, 1))
    names = recipes.run(code, {**SIZES, "EXAMPLES": 8}, "convert_bert.md")
    notes = str(names["report"])
    assert notes.count("attention") >= SIZES["LAYERS"], notes
    outputs = [np.array(names[x](names["data"])) for x in ("trained", "longer")]
    np.testing.assert_allclose(*outputs, rtol=1e-6)
    positions = names["longer"].backbone.get_layer("position_embedding")
    assert positions.position_embeddings.shape[0] == 4096
