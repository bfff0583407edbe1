"""A notebook opened alone fetches its repository, at the address that `make publish` wrote. GitHub is a folder here."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from lab.files import ROOT
from lab.make import publish

OWNER = "some-one/grpo.notebooks"


def git(folder, *arguments):
    known = ("-c", "user.name=Someone", "-c", "user.email=someone@example.org")
    done = subprocess.run(["git", *known, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit_all(folder):
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "a commit")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path):
    """A small repository with these notebooks, unpublished."""
    folder = tmp_path / "a repository"
    for name in ("README.md", "requirements.txt", "notebooks/lab/setup.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        text = re.sub(r"(REPOSITORY|COMMIT) = \\\".*?\\\"", r"\1 = \"\"", path.read_text(encoding="utf-8"))
        (folder / "notebooks" / path.name).write_text(text, encoding="utf-8")
    git(folder, "init", "-q", "-b", "main")
    commit_all(folder)
    return folder


@pytest.fixture
def published(repository):
    """The same after `make publish` and its commit; the folder and the commit that the notebooks fetch."""
    commit = publish.publish(repository, OWNER)
    commit_all(repository)
    return repository, commit


def setup_cell(folder):
    """The one setup cell that all notebooks of a folder have."""
    notebooks = [json.loads(path.read_text(encoding="utf-8")) for path in (folder / "notebooks").glob("*.ipynb")]
    (cell,) = {"".join(notebook["cells"][1]["source"]) for notebook in notebooks}
    return cell


def what_is_written(folder):
    """The address and commit of the setup cells, after checking that the badges of all pages agree with them."""
    values = dict(re.findall(r'^(REPOSITORY|COMMIT) = "(.*?)"', setup_cell(folder), re.M))
    repo = values["REPOSITORY"].removeprefix("https://github.com/")
    assert bool(repo) is bool(values["COMMIT"]) and re.fullmatch("([0-9a-f]{40})?", values["COMMIT"])
    pages = {path.name: json.loads(path.read_text())["cells"][0]["source"] for path in folder.glob("notebooks/*.ipynb")}
    pages = {name: "".join(source) for name, source in pages.items()}
    pages["01_prepare_data.ipynb in the README"] = (folder / "README.md").read_text(encoding="utf-8")
    for name, text in pages.items():
        links = re.findall(r"\]\((https://(?:colab|kaggle|www\.kaggle)\S*ipynb)\)", text)
        place = re.compile(re.escape(f"{repo}/blob/") + r"[\w./-]+/notebooks/" + re.escape(name.split()[0]))
        assert len(links) == (2 if repo else 0) and all(place.search(link) for link in links), name
    return repo, values["COMMIT"]


def test_address_commit_and_badges_agree_in_all_notebooks_and_the_readme_as_they_are_committed():
    what_is_written(ROOT)


def test_publishing_writes_one_address_and_the_newest_commit_everywhere_and_again_replaces_them(repository):
    assert what_is_written(repository) == ("", "")
    before = git(repository, "rev-parse", "HEAD")
    assert publish.publish(repository, OWNER) == before
    assert what_is_written(repository) == (OWNER, before)
    after = commit_all(repository)
    publish.publish(repository, "https://github.com/other/name.git")
    assert what_is_written(repository) == ("other/name", after)
    readme = (repository / "README.md").read_text(encoding="utf-8")
    assert readme.startswith("# GRPO notebooks\n\n[![Colab]") and OWNER not in readme
    assert publish.with_badges(readme, publish.badges("other/name", "main", "01_prepare_data.ipynb")) == readme


@pytest.mark.parametrize("repo", ["", "owner", "owner/name/more", "owner/na me", "-x/name", "gitlab.com/owner/name"])
def test_a_malformed_address_is_refused_and_nothing_is_written(repository, repo):
    with pytest.raises(SystemExit, match="no GitHub repository: write make publish REPO=owner/name"):
        publish.publish(repository, repo)
    assert git(repository, "status", "--porcelain") == ""


def test_uncommitted_changes_are_refused_because_the_notebooks_would_fetch_a_commit_without_them(repository):
    (repository / "requirements.txt").write_text("changed\n")
    with pytest.raises(SystemExit, match="commit them first.\n ?M requirements.txt"):
        publish.publish(repository, OWNER)
    assert what_is_written(repository) == ("", "")


def run_cell(source, folder, github="/nowhere", **environment):
    """Runs a setup cell as a notebook in that folder would; `github` is what https://github.com/ leads to."""
    folder.mkdir(exist_ok=True)
    moved = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.{github}.insteadOf"}
    moved["GIT_CONFIG_VALUE_0"] = f"https://github.com/{OWNER}"
    own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    own |= {"GRPO_NO_INSTALL": "1", **moved, **environment}
    command = [sys.executable, "-c", f"{source}\nprint('root', root)"]
    return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True)


def test_a_notebook_alone_fetches_the_pinned_commit_says_so_in_a_line_and_does_it_once(published, tmp_path):
    repository, commit = published
    cell, alone = setup_cell(repository), tmp_path / "an empty folder"
    first = run_cell(cell, alone, repository)
    clone = alone / "grpo-notebooks"
    line = f"Fetching https://github.com/{OWNER} at {commit[:10]} into {clone}"
    assert first.stdout.splitlines() == [line, f"root {clone}"], first.stderr
    assert git(clone, "rev-parse", "HEAD") == commit != git(repository, "rev-parse", "HEAD")
    assert [path.name for path in alone.iterdir()] == ["grpo-notebooks"]
    (clone / "README.md").write_text("changed here")
    second = run_cell(cell, alone)  # there is no network any more
    assert second.stdout.splitlines() == [f"root {clone}"], second.stderr
    assert (clone / "README.md").read_text() == "changed here"


def test_in_colab_it_is_fetched_into_the_drive_that_is_mounted(published, tmp_path):
    repository, _ = published
    (drive := tmp_path / "content/drive/MyDrive").mkdir(parents=True)
    cell = setup_cell(repository).replace("/content", f"{tmp_path}/content")
    done = run_cell(cell, tmp_path / "content", repository)
    assert done.stdout.endswith(f"root {drive}/grpo-notebooks\n"), done.stderr
    assert run_cell(cell, tmp_path / "content/sample_data").stdout == f"root {drive}/grpo-notebooks\n"


def test_what_a_killed_fetch_left_is_not_taken_for_the_repository(published, tmp_path):
    repository, _ = published
    half = tmp_path / "alone/fetching-x1y2z3/new/notebooks/lab"
    half.mkdir(parents=True)
    done = run_cell(setup_cell(repository), tmp_path / "alone", repository)
    assert done.stdout.endswith("grpo-notebooks\n"), done.stderr


def test_a_folder_in_the_way_is_named(published, tmp_path):
    (tmp_path / "alone/grpo-notebooks/.git").mkdir(parents=True)
    done = run_cell(setup_cell(published[0]), tmp_path / "alone")
    assert "grpo-notebooks lacks the notebooks: remove or rename it, and run this cell again." in done.stderr


@pytest.mark.parametrize("lacks, words", [({}, "unable to access"), ({"PATH": ""}, "git")], ids=["network", "git"])
def test_without_network_or_git_it_says_what_to_do_and_leaves_nothing_half(published, tmp_path, lacks, words):
    done = run_cell(setup_cell(published[0]), tmp_path / "alone", "http://127.0.0.1:9/nobody", **lacks)
    said = done.stderr[done.stderr.index("AssertionError") :]
    assert "Not fetched: it needs internet (Kaggle: in Settings) and git.\n" in said and words in said.split("\n", 1)[1]
    assert not list((tmp_path / "alone").iterdir())


def test_without_an_address_it_says_that_the_repository_is_needed(repository, tmp_path):
    done = run_cell(setup_cell(repository), tmp_path / "alone")
    assert "This notebook needs its repository: clone the whole of it, and open the notebook there." in done.stderr
