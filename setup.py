"""Packaging of mmspatial."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent

# The two sets of OpenMMLab distributions exclude each other: they carry the same modules.
# Neither is a hard dependency, so that an installation that exists is left alone.
ONEDL = [
    'onedl-mmengine>=0.10.12',
    'onedl-mmcv>=2.3.6',
    'onedl-mmsegmentation>=1.4.2',
    'onedl-mmdetection>=3.5.1',
]
OPENMMLAB = [
    'mmengine>=0.10.5',
    'mmcv-lite>=2.1.0,<2.2.0',
    'mmsegmentation>=1.2.2',
    'mmdet>=3.3.0',
    'ftfy',
    'regex',
]


def version() -> str:
    """Read the version without importing the package."""
    text = (ROOT / 'mmspatial/__init__.py').read_text(encoding='utf-8')
    return re.search(r"^__version__ = '(.+)'", text, re.M)[1]


setup(
    name='mmspatial',
    version=version(),
    description='Vision backbones with spatial priors for dense prediction with OpenMMLab',
    long_description=(ROOT / 'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    python_requires='>=3.10',
    packages=find_packages(include=['mmspatial', 'mmspatial.*']),
    # `.mim` links to configs/ and tools/; wheels and sdists get the files themselves.
    package_data={'mmspatial': ['.mim/*.yml', '.mim/configs/**/*', '.mim/tools/*']},
    # These three are about a checkout.
    exclude_package_data={
        'mmspatial': [f'.mim/tools/{name}.sh' for name in ('demo', 'test', 'env')]
    },
    install_requires=['torch>=2.4', 'torchvision', 'timm>=1.0.9', 'safetensors', 'numpy'],
    extras_require={
        'onedl': ONEDL,
        'openmmlab': OPENMMLAB,
        'bench': ['matplotlib'],
        'onnx': ['onnx', 'onnxruntime', 'onnxscript'],
        'test': [
            'pytest>=7',
            'ruff>=0.6',
            'build',
            'setuptools>=70.1',
            'hypothesis',
            'matplotlib',
            'onnx',
            'onnxruntime',
            'onnxscript',
        ],
    },
    zip_safe=False,
)
