import json, shutil
from pathlib import Path
from lab.make import run
def test_it(tmp_path):
    folder = tmp_path / "outputs"
    shutil.copytree("/tmp/base/outputs", folder, ignore=shutil.ignore_patterns("executed","merged*","adapter","evaluation*","answers","code"))
    shutil.copytree("/tmp/base/outputs/run/adapter", folder/"run/adapter", dirs_exist_ok=True)
    try:
        run.run_notebooks(("05_merge_and_export",), folder, {"05_merge_and_export": {"N_EVALUATE": 12, "N_SAMPLES": 3, "N_PROOF": 6}})
    finally:
        shutil.rmtree("/tmp/h/out", ignore_errors=True); shutil.copytree(folder, "/tmp/h/out")
