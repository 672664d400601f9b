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
    done = set()

    def copy(source, target):
        if id(target) in done:
            return
        done.add(id(target))
        source = instead.get(source, source)
        store = {}
        source.save_own_variables(store)
        if store:
            target.load_own_variables(store)
        for path, child in places.children(source):
            copy(child, places.at(target, path))

    copy(source, target)
