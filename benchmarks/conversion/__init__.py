"""What trained models lose when linear attention takes the place of theirs."""
