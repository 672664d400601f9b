"""The figures of the Performer paper that a CPU can make, and its laws as checks."""
