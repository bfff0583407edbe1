"""A person in JupyterLab: `make lab` on a copy of the repository, a real browser, and what stands on the screen.

The kernels are forked from `tests.warm_processes`. Everything else is what `make lab` starts.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time

from lab.files import ROOT
from tests.warm_processes import warm_python

MORE = "--no-browser --ServerApp.port=0 --IdentityProvider.token= --LabApp.expose_app_in_browser=True"
SETTINGS = {  # all of a long notebook is drawn, so that its text can be read, and nothing is fetched or asked
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "docmanager-extension/plugin": {"autosave": False},
}
HELPERS = """
window.walk = {
    panel: () => jupyterapp.shell.currentWidget,
    cells: () => walk.panel().content.widgets,
    cell: id => walk.cells().find(cell => cell.model.id === id),
    outputs: cell => cell.model.type === "code" ? cell.model.outputs.toJSON() : [],
    said: id => [...walk.cell(id).node.querySelectorAll(".jp-OutputArea-output")].map(o => o.innerText).join("\\n"),
    select: id => {
        const notebook = walk.panel().content;
        notebook.deselectAll();
        notebook.activeCellIndex = walk.cells().indexOf(walk.cell(id));
    },
    start: command => {
        const panel = walk.panel();
        panel.running = true;
        panel.before = Math.max(0, ...walk.cells().map(cell => cell.model.executionCount ?? 0));
        jupyterapp.commands.execute(command).finally(() => { panel.running = false; });
    },
    failed: () => walk.cells().find(cell => cell.model.executionCount > walk.panel().before
        && walk.outputs(cell).some(one => one.output_type === "error"))?.model.id ?? null,
};
"""


def warm_kernels(folder):
    """A kernelspec `python3` whose kernels are forked from a process that has done the imports."""
    command = [warm_python(), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = folder / "kernels/python3/kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": command, "display_name": "Python 3", "language": "python"}))


def copy_repository(folder):
    """The files that git knows, or would take: a walk changes nothing in the checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


@contextlib.contextmanager
def jupyter_server(repository, folder):
    """What `make lab` starts, with settings of its own in `folder`; gives its address."""
    for name, settings in SETTINGS.items():
        file = folder / f"settings/@jupyterlab/{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings))
    names = {"CONFIG_DIR": "config", "DATA_DIR": "data", "RUNTIME_DIR": "runtime", "PATH": "share"}
    environment = {**os.environ, **{f"JUPYTER_{name}": str(folder / where) for name, where in names.items()}}
    environment |= {"JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"), "IPYTHONDIR": str(folder / "ipython")}
    environment |= {"JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces")}
    environment.pop("PYTHONPATH", None)  # it leads to the checkout
    warm_kernels(folder / "share")
    recipe = subprocess.run(
        ["make", "-n", "lab", f"VENV={sys.prefix}", f"ARGS={MORE}"], cwd=repository, capture_output=True, text=True
    )
    (command,) = (line for line in recipe.stdout.replace("\\\n", " ").splitlines() if "jupyter lab" in line)
    with open(folder / "server.log", "w+", encoding="utf-8") as log:
        server = subprocess.Popen(
            ["sh", "-c", f"exec {command}"], cwd=repository, env=environment, stdout=log, stderr=log
        )
        try:
            said, began = "", time.monotonic()
            while not (address := re.search(r"http://127\.0\.0\.1:\d+/lab\S*", said)):
                assert server.poll() is None and time.monotonic() - began < 60, f"{command}: {said}"
                time.sleep(0.1)
                said = (folder / "server.log").read_text(encoding="utf-8")
            yield address[0]
        finally:
            server.terminate()
            server.wait(20)


class Walk:
    """What a person does in JupyterLab's page, and sees there. A cell is named by its id in the notebook."""

    def __init__(self, page, address, screens):
        self.page, self.screens, self.stations = page, screens, 0
        screens.mkdir()
        page.goto(address)
        self.until("() => window.jupyterapp && jupyterapp.restored.then(() => true)")
        page.evaluate(HELPERS)

    def until(self, condition, argument=None, seconds=60):
        """Asks now and then: by itself Playwright asks at every frame, and has the page drawn 60 times a second."""
        self.page.wait_for_function(condition, arg=argument, timeout=seconds * 1000, polling=250)

    def open(self, name):
        """Opens a notebook by a double click in the file browser, or goes to its tab."""
        path = self.page.evaluate(
            """name => {
                const open = [...jupyterapp.shell.widgets("main")].find(one => one.context?.path.endsWith(name));
                if (open) jupyterapp.shell.activateById(open.id);
                return open?.context.path;
            }""",
            name,
        )
        if not path:
            self.page.locator(".jp-DirListing-item", has_text=name).dblclick()
        self.until(
            "name => walk.panel()?.context?.path.endsWith(name) && walk.panel().context.isReady"
            " && (walk.panel().walked || walk.panel().sessionContext.session?.kernel?.status === 'idle')",
            name,
        )
        self.page.evaluate("walk.panel().walked = true")  # from now on its kernel may be busy

    def source(self, cell):
        return self.page.evaluate("id => walk.cell(id).model.sharedModel.getSource()", cell)

    def edit(self, cell, *changes):
        """Clicks into a cell, selects each text and writes another one over it."""
        for old, new in changes:
            found = self.source(cell).find(old)
            assert found >= 0, f"{old!r} is not in cell {cell}: {self.source(cell)}"
            self.page.evaluate(
                """([id, start, end]) => {
                    walk.select(id);
                    walk.panel().content.mode = "edit";
                    const editor = walk.cell(id).editor, at = offset => editor.getPositionAt(offset);
                    editor.focus();
                    editor.setSelection({start: at(start), end: at(end)});
                }""",
                [cell, found, found + len(old)],
            )
            self.page.keyboard.insert_text(new) if new else self.page.keyboard.press("Delete")
            assert new in self.source(cell)

    def start(self, command):
        self.page.evaluate("command => walk.start(command)", command)

    def wait(self, seconds=120):
        self.until(
            "() => !walk.panel().running && walk.panel().sessionContext.session.kernel.status === 'idle'", None, seconds
        )
        self.page.wait_for_timeout(200)  # what came last is drawn, and typeset

    def run_all(self, seconds=120):
        self.start("notebook:run-all-cells")
        self.wait(seconds)

    def restart_and_run_all(self):
        """Presses the button for it, and agrees; does not wait for the end."""
        self.start("notebook:restart-run-all")
        self.page.evaluate("walk.panel().before = 0")
        self.page.locator(".jp-Dialog .jp-mod-accept").click()

    def run(self, *cells):
        """Runs these cells one by one, up to one that fails."""
        for cell in cells:
            self.page.evaluate("id => walk.select(id)", cell)
            self.start("notebook:run-cell")
            self.wait()
            if self.failed():
                break

    def wait_for_text(self, cell, pattern, seconds=90):
        """Until a regular expression matches the output of this cell."""
        self.until(
            "([id, pattern]) => RegExp(pattern).test(walk.said(id)) || !walk.panel().running", [cell, pattern], seconds
        )
        assert re.search(pattern, self.said(cell)), f"{pattern!r} never came: {self.said(self.failed() or cell)[:3000]}"

    def stop(self):
        """Presses the stop button of the notebook that is shown."""
        self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) [data-jp-item-name='interrupt']").click()

    def said(self, cell):
        """What the output of a cell shows: the text that can be seen, without what is folded away."""
        return re.sub(r"^\[\d+\]:\n*", "", self.page.evaluate("id => walk.said(id)", cell), flags=re.MULTILINE)

    def failed(self):
        """The cell that stopped what was run last, by id; None where there is none."""
        return self.page.evaluate("walk.failed()")

    def not_run(self):
        """The code cells without a number: those after a stop."""
        return self.page.evaluate(
            "walk.cells().filter(c => c.model.type === 'code' && !c.model.executionCount).map(c => c.model.id)"
        )

    def typeset(self, where="table"):
        """What MathJax has made mathematics of, among the outputs: texts."""
        return self.page.evaluate(
            """where => [...walk.panel().node.querySelectorAll(`.jp-OutputArea ${where} mjx-container`)].map(
                one => one.closest("td, p, div").innerText)""",
            where,
        )

    def look(self, cell=None, name="", height=900):
        """Keeps a picture of the screen, with this cell at the top of it."""
        self.stations += 1
        if cell:
            self.page.evaluate("id => walk.cell(id).node.scrollIntoView()", cell)
        self.page.set_viewport_size({"width": 1280, "height": height})
        self.page.wait_for_timeout(100)
        self.page.screenshot(path=self.screens / f"{self.stations:02d}-{name or cell}.png")
