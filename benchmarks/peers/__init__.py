"""Our layers beside the same ones of other libraries: their numbers, and their time."""
