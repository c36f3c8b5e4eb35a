"""What backbones are built on: stages, outputs, freezing, weights."""
