"""Figures of the Performer paper that a CPU can reproduce, and checks of its laws."""
