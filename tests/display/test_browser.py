"""All objects in a real browser, in light and dark: nothing is wider than its box; and in a real kernel.

The pictures are kept in ``.pictures/`` of the checkout, for people to look at. ``ci/browser.sh`` installs the
browser, which is Debian's chromium.
"""

import html as standard
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import nbformat
import pytest
from _examples import examples
from _page import Page
from _things import case
from nbclient import NotebookClient

PICTURES = Path(__file__).parents[2] / ".pictures"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HEIGHT = 8800

# Tells what is wider than its box, which texts leave their drawing, and the colors.
MEASURE = """
<script>
if (OPEN) for (const details of document.querySelectorAll("details")) details.open = true;
const found = [...document.querySelectorAll("section")].map(section => {
  const box = section.querySelector(".xz"), room = box.getBoundingClientRect().right;
  const parts = [...box.querySelectorAll("*")].filter(part => !part.closest("style,.xz-table"));
  const drawings = [...box.querySelectorAll("svg")];
  return {
    name: section.dataset.name,
    wide: [box, ...box.querySelectorAll(".xz-facts,.xz-tall,.xz-both,.xz-row,.xz-title")]
      .filter(part => part.scrollWidth > part.clientWidth).map(part => part.className),
    outside: parts.filter(part => part.getBoundingClientRect().right > room + 1).map(part => part.tagName),
    drawn: drawings.flatMap(svg => [...svg.querySelectorAll("text")].filter(text => {
      const own = text.getBoundingClientRect(), around = svg.getBoundingClientRect();
      return own.right > around.right + 1 || own.left < around.left - 1 || own.bottom > around.bottom + 1;
    })).map(text => text.textContent),
    colors: [getComputedStyle(box).color, getComputedStyle(box).backgroundColor],
    face: drawings.slice(0, 1).map(svg => getComputedStyle(svg.querySelector(".xz-face")).fill),
    scripts: box.querySelectorAll("script,img").length,
  };
});
const result = document.createElement("pre");
result.id = "result";
result.hidden = true;
result.textContent = JSON.stringify(found);
document.body.append(result);
</script>
"""


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("there is no chromium here; bash ci/browser.sh installs it")
    return found


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {name: each._repr_html_() for name, each in examples(tmp_path_factory.mktemp("shown")).items()}


def page(sources: dict[str, str], *, width: int, body: str = "", opened: bool = False) -> str:
    """A page with all objects, and a script that measures them."""
    sections = "".join(
        f'<section data-name="{name}"><h4>{name}</h4>{source}</section>' for name, source in sources.items()
    )
    measure = MEASURE.replace("OPEN", str(opened).lower())
    style = f"<style>body{{width:{width}px;font-family:sans-serif}}</style>"
    return f'<!doctype html><meta charset="utf-8">{style}<body {body}>{sections}{measure}</body>'


def run(browser: str, file: Path, *options: str, dark: bool = False) -> str:
    """What the browser prints."""
    command = [
        browser, "--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions",
        f"--user-data-dir={file.parent / 'profile'}",
        f"--blink-settings=preferredColorScheme={int(not dark)}",
        *(["--no-sandbox"] if os.name == "posix" and os.getuid() == 0 else []), *options, file.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def measured(browser: str, file: Path, *options: str, dark: bool = False) -> list[dict[str, Any]]:
    """What the script of a page, or those of its frames, a line each, have found."""
    printed = run(browser, file, "--dump-dom", *options, dark=dark)
    (found,) = re.findall('<pre id="result"[^>]*>(.*?)</pre>', printed, re.DOTALL)
    return [each for line in found.splitlines() for each in json.loads(standard.unescape(line))]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "opened"), [(880, False), (420, True)])
def test_nothing_is_wider_than_its_box(
    browser: str, sources: dict[str, str], tmp_path: Path, width: int, opened: bool
) -> None:
    file = tmp_path / "page.html"
    file.write_text(page(sources, width=width, opened=opened), "utf-8")
    found = measured(browser, file)
    assert [each["name"] for each in found] == list(sources)
    for each in found:
        with case(each["name"]):
            assert (each["wide"], each["outside"], each["drawn"], each["scripts"]) == ([], [], [], 0)


def brightness(color: str) -> float:
    red, green, blue = map(float, re.findall(r"[\d.]+", color)[:3])
    return (0.299 * red + 0.587 * green + 0.114 * blue) / 255


JUPYTER = 'data-jp-theme-light="{}" style="--jp-layout-color0:{};--jp-content-font-color0:{}"'
CODE = 'class="vscode-{}" style="--vscode-editor-background:{};--vscode-editor-foreground:{}"'
THEMES = {
    "a plain page": ("", None),
    "JupyterLab, light": (JUPYTER.format("true", "#fff", "#111"), False),
    "JupyterLab, dark": (JUPYTER.format("false", "#111", "#eee"), True),
    "VS Code, light": (CODE.format("light", "#fff", "#222"), False),
    "VS Code, dark": (CODE.format("dark", "#1e1e1e", "#ddd"), True),
}


@pytest.mark.slow
@pytest.mark.parametrize("dark_system", [False, True])
def test_light_and_dark(browser: str, sources: dict[str, str], tmp_path: Path, dark_system: bool) -> None:
    """Each theme is a frame of one page; the frames write what they measure to the page."""
    send = "<script>parent.result.textContent += result.textContent + '\\n'</script>"
    pages = (page({name: sources["array"]}, width=880, body=body) for name, (body, _) in THEMES.items())
    frames = (f'<iframe srcdoc="{standard.escape(each + send)}"></iframe>' for each in pages)
    file = tmp_path / "page.html"
    file.write_text(f'<meta charset="utf-8"><pre id="result"></pre>{"".join(frames)}', "utf-8")
    found = measured(browser, file, "--virtual-time-budget=5000", dark=dark_system)
    assert {each["name"] for each in found} == set(THEMES)
    for each in found:
        is_dark = THEMES[each["name"]][1]
        text, ground = map(brightness, each["colors"])
        face = brightness(each["face"][0])
        with case(each["name"]):
            if dark_system if is_dark is None else is_dark:
                assert (ground < 0.2, text > 0.8, face < 0.4) == (True, True, True)
            else:
                assert (ground > 0.9, text < 0.3, face > 0.8) == (True, True, True)


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pictures_are_kept(browser: str, sources: dict[str, str], tmp_path: Path, dark: bool) -> None:
    file = tmp_path / "page.html"
    body = 'style="background:#111;color:#eee"' if dark else ""
    file.write_text(page(sources, width=880, body=body), "utf-8")
    PICTURES.mkdir(exist_ok=True)
    picture = PICTURES / f"shown-{'dark' if dark else 'light'}.png"
    picture.unlink(missing_ok=True)
    run(browser, file, f"--window-size=920,{HEIGHT}", f"--screenshot={picture}", dark=dark)
    assert picture.stat().st_size > 50_000


TESTS = Path(__file__).parents[1]
SETUP = f"""
import sys; sys.path[:0] = {[str(TESTS), str(TESTS.parent / "ci")]!r}
from pathlib import Path
from _examples import examples
shown = examples(Path("."))
"""


@pytest.mark.slow
def test_a_kernel_shows_each_object(tmp_path: Path) -> None:
    names = ["array", "group", "attributes", "store", "explanation", "trace", "info", "tree", "indexer"]
    names.append("explanation of a dataset")
    cells = [SETUP, *(f"shown[{name!r}]" for name in names), "list(shown['group'].values())"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    folder = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=folder).execute()
    outputs = [cell.outputs for cell in notebook.cells]
    kinds = {each.output_type for cell in outputs for each in cell}
    assert kinds == {"execute_result"}  # Nothing is printed, and nothing fails.
    for name, (output,) in zip(names, outputs[1:], strict=False):
        Page(output.data["text/html"])
        assert output.data["text/plain"], name
    assert outputs[1 + names.index("info")][0].data["text/plain"].startswith("name        /surface/sst\n")
    (inside,) = outputs[-1]  # Within other objects, each is one line.
    assert "<xzarr3.Array /daily shape=" in inside.data["text/plain"]
