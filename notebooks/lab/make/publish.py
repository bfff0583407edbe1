"""`make publish REPO=owner/name`: the address in every setup cell, and badges that open a notebook in Colab and Kaggle.

A commit cannot hold its own hash, so the setup cells fetch the commit that is the newest when this runs.
"""

import argparse
import json
import re
import subprocess
from pathlib import Path

from lab.files import ROOT, write_text

ADDRESS = re.compile(r'^(REPOSITORY|COMMIT) = ".*"', re.M)
BADGES = re.compile(r"^\[!\[Colab\]\(.*\n\n", re.M)
COLAB = (
    "[![Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{})"
)
KAGGLE = "[![Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{})"


def badges(repo: str, branch: str, notebook: str) -> str:
    """One line of Markdown: a notebook of a GitHub repository, opened in Colab or in Kaggle."""
    place = f"{repo}/blob/{branch}/notebooks/{notebook}"
    return f"{COLAB.format(place)} {KAGGLE.format(place)}"


def with_badges(text: str, line: str) -> str:
    """A page with this line of badges after its title, in the place of an older one."""
    title, _, rest = BADGES.sub("", text).partition("\n\n")
    return f"{title}\n\n{line}\n\n{rest}"


def git(root: Path, *arguments: str) -> str:
    """What git says; raises SystemExit with its own words where it fails."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"git {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout.strip()


def publish(root: Path, repo: str) -> str:
    """Writes address, commit and badges into all notebooks and the README; returns the commit that they fetch."""
    repo = re.sub(r"^https://github\.com/|(\.git)?/*$", "", repo)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]*/[\w.-]+", repo):
        raise SystemExit(f"{repo!r} is no GitHub repository: write make publish REPO=owner/name.")
    if changed := git(root, "status", "--porcelain"):
        raise SystemExit(
            f"The setup cells would fetch a commit that lacks these changes: commit them first.\n{changed}"
        )
    git(root, "cat-file", "-e", "HEAD:notebooks/lab/setup.py")
    commit, branch = git(root, "rev-parse", "HEAD"), git(root, "branch", "--show-current") or "main"
    values = {"REPOSITORY": f"https://github.com/{repo}", "COMMIT": commit}
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        first, setup = notebook["cells"][:2]
        first["source"] = with_badges("".join(first["source"]), badges(repo, branch, path.name)).splitlines(True)
        source = ADDRESS.sub(lambda found: f'{found[1]} = "{values[found[1]]}"', "".join(setup["source"]))
        setup["source"] = source.splitlines(True)
        write_text(path, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    readme = root / "README.md"
    line = badges(repo, branch, "01_prepare_data.ipynb")
    write_text(readme, with_badges(readme.read_text(encoding="utf-8"), line))
    return commit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repo", help="owner/name on GitHub")
    commit = publish(ROOT, parser.parse_args().repo)
    print(f"The notebooks fetch commit {commit[:10]}. Commit what changed, and push both commits.")


if __name__ == "__main__":
    main()
