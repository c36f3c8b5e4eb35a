from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import safetensors.torch
import torch

from mmspatial.compat.checkpoint import CheckpointError, load_file


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Serve a folder of this machine by HTTP."""
    folder = tmp_path / 'served'
    folder.mkdir()
    handler = partial(QuietHandler, directory=str(folder))
    server = ThreadingHTTPServer(('127.0.0.1', 0), handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f'http://127.0.0.1:{server.server_port}'
    server.shutdown()
    thread.join()
    server.server_close()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def test_addresses_are_downloaded_once(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'cache'))
    weights = {'weight': torch.arange(3.0)}
    torch.save(weights, tmp_path / 'served' / 'a.pth')
    safetensors.torch.save_file(weights, tmp_path / 'served' / 'b.safetensors')
    for name in ('a.pth', 'b.safetensors'):
        url = f'{address}/{name}?download=true'
        for _ in range(2):
            assert torch.equal(load_file(url)['weight'], weights['weight'])
            (tmp_path / 'served' / name).unlink(missing_ok=True)
    with pytest.raises(CheckpointError, match=r"'http://.*/c\.pth' cannot be downloaded .*404"):
        load_file(f'{address}/c.pth')
    (tmp_path / 'served' / 'd.pth').write_text('<html>')
    with pytest.raises(CheckpointError, match=r'd\.pth.*no checkpoint'):
        load_file(f'{address}/d.pth')
