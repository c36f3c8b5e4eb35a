"""Every block that backbones share, each exactly once."""
