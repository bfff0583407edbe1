"""The first hour of a new user, in JupyterLab and a real browser: run the notebooks, change rewards, break them, go on."""

import pytest

from tests import jupyter_walk
from tests.page.test_browser import chromium, needed  # noqa: F401  (a fixture)


@pytest.fixture(scope="module")
def walk(chromium, tmp_path_factory):  # noqa: F811
    pytest.importorskip("jupyterlab") if not __import__("os").environ.get("CI") else __import__("jupyterlab")
    folder = tmp_path_factory.mktemp("walk")
    repository = jupyter_walk.copy_repository(folder / "repository")
    with jupyter_walk.jupyter_server(repository, folder / "jupyter") as address:
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        yield jupyter_walk.Walk(page, address, folder / "screens")
        page.close()
