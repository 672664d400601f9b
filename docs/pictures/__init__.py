"""Scripts that draw the pictures of the documentation: `make docs-pictures`.

Each script writes the PNG of its own name, beside itself.
"""
