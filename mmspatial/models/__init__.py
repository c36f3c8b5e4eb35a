"""Backbones and heads; importing this package registers them."""

from .backbones import EVT, RMT

__all__ = ['EVT', 'RMT']
