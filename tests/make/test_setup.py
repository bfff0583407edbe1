"""Set-up: pins, what is kept, what is said when it cannot go on."""

import subprocess
import sys

import pytest

from lab import setup


def pretend(monkeypatch, installed):
    """Makes the set-up see these versions, and every other requirement as pinned."""
    pins = {name: version for name, version, _ in setup.requirements()} | dict(p.split("==") for p in setup.UNSLOTH)
    monkeypatch.setattr(setup, "version_of", (pins | installed).get)


def test_every_requirement_is_pinned_and_found_under_a_heading():
    found = setup.requirements()
    text = (setup.ROOT / "requirements.txt").read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert len(found) == len(lines) > 100
    assert {heading for _, _, heading in found} == {"exact", "any", "make"}


def test_this_environment_is_complete():
    assert setup.missing(strict=True) == ([], [])


@pytest.mark.parametrize(
    "version, accepted",
    [
        ("2.4.0", True),
        ("2.9.1+cu128", True),
        ("2.14.9", True),
        ("2.13.0", True),
        ("2.3.1", False),
        ("2.15.0", False),
        (None, False),
    ],
)
def test_a_preinstalled_torch_is_kept_exactly_where_unsloth_accepts_it(monkeypatch, version, accepted):
    assert setup.torch_is_accepted(version) is accepted
    pretend(monkeypatch, {"torch": version})
    wanted, _ = setup.missing(strict=False)
    assert (wanted == []) is accepted


def test_a_notebook_installs_only_what_it_needs_and_keeps_other_versions(monkeypatch):
    other = {
        "trl": "0.9.0",
        "matplotlib": "3.8.0",
        "numpy": "2.0.2",
        "jupyterlab": None,
        "pandas": None,
        "unsloth": None,
    }
    pretend(monkeypatch, other)
    wanted, beside = setup.missing(strict=False)
    assert [pin.split("==")[0] for pin in wanted] == ["trl", "pandas"]
    assert [pin.split("==")[0] for pin in beside] == ["unsloth"]


def test_make_wants_every_pin_exactly(monkeypatch):
    pretend(monkeypatch, {"matplotlib": "3.8.0", "torch": "2.12.0", "jupyterlab": None})
    wanted, _ = setup.missing(strict=True)
    assert {pin.split("==")[0] for pin in wanted} == {"matplotlib", "torch", "jupyterlab"}


def test_a_cuda_or_cpu_build_of_the_pinned_torch_is_that_torch(monkeypatch):
    pin = next(version for name, version, _ in setup.requirements() if name == "torch")
    pretend(monkeypatch, {"torch": f"{pin}+cu130"})
    assert setup.missing(strict=True) == ([], [])


def test_what_the_kernel_has_imported_is_not_replaced(monkeypatch):
    monkeypatch.setattr(setup, "missing", lambda strict: (["numpy==0"], []))
    with pytest.raises(setup.SetupError, match="already imported another version of numpy: restart"):
        setup.ensure_environment()
    pins = setup.loaded_pins()
    assert any(pin.startswith("numpy==") for pin in pins) and any(pin.startswith("torch==") for pin in pins)
    assert not any(pin.startswith("transformers==") for pin in pins)


def test_too_old_a_python_is_told_so():
    with pytest.raises(SystemExit, match=r"Python 3\.10 is too old.*make run PYTHON="):
        setup.check_python((3, 10))


def test_a_full_disk_is_told_before_anything_is_installed(tmp_path):
    with pytest.raises(setup.SetupError, match="are free.*free some space"):
        setup.check_disk(tmp_path, 10**9)


@pytest.mark.parametrize(
    "output, words",
    [
        ("Failed to establish a new connection: [Errno -3] Temporary failure in name resolution", "check the network"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        ("error: externally-managed-environment", "make run"),
        (
            "ERROR: No matching distribution found for torch==2.13.0",
            "offers no torch==2.13.0 for this machine: check the network",
        ),
        ("something else", "last lines"),
    ],
)
def test_a_failed_pip_is_explained_in_a_sentence(output, words):
    assert words in setup.explain(output)


def test_without_a_network_the_installation_ends_with_a_sentence(tmp_path):
    arguments = ["--no-index", "--index-url", "http://127.0.0.1:9/simple", "no-such-package-anywhere==1"]
    with pytest.raises(setup.SetupError, match="no-such-package-anywhere.*whole log"):
        setup.pip(sys.executable, arguments, tmp_path / "log")


def test_an_old_python_reads_the_file_far_enough_to_be_told(tmp_path):
    """The version check must stand before anything that an old Python does not have."""
    source = (setup.ROOT / "notebooks/lab/setup.py").read_text()
    early = source[: source.index("check_python()  #")]
    assert [line for line in early.splitlines() if line.startswith(("import", "from"))] == ["import sys"]
    done = subprocess.run([sys.executable, "-c", early + "check_python((3, 6))"], capture_output=True, text=True)
    assert done.returncode == 1 and "too old" in done.stderr


def test_a_second_make_does_nothing():
    done = subprocess.run(["make", "-q", ".venv/.ready"], cwd=setup.ROOT)
    if not (setup.ROOT / ".venv/.ready").exists():
        pytest.skip("the tests do not run from the Makefile's environment here")
    assert done.returncode == 0
