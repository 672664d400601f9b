"""Pictures of the documentation, `make docs-pictures`: each `draw` makes a figure."""
