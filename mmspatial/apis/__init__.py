"""What the tools do, in small modules; importing this package is cheap."""

from __future__ import annotations

from .errors import UserError, report_errors, require_openmmlab

__all__ = ['UserError', 'report_errors', 'require_openmmlab']
