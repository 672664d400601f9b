"""Weights carried over from one model to another that is like it."""

from keras_performer.conversion import places


def copy_weights(source, target, instead):
    """Gives a model the weights of another.

    Args:
        source, target: built layers; each layer inside of the source has one in the
            same place inside of the target.
        instead: dict of layers of the source to those from which what stands in their
            place in the target gets its weights.
    """
    for given, own in places.pairs(source, target, leaves=instead):
        if given in instead:
            copy_weights(instead[given], own, {})
            continue
        store: dict = {}
        given.save_own_variables(store)
        if store:
            own.load_own_variables(store)
