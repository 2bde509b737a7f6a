"""Folders of web servers, as they show them on HTML pages: what is read of these, and what is refused."""

import http.server
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from _servers import answered_by
from _things import refused

import xzarr3
from xzarr3 import MemoryStore, StoreCapabilityError, StoreError
from xzarr3.stores import ReadOnlyStore, WrapperStore
from xzarr3.stores.object.errors import AnswerError
from xzarr3.stores.object.listing import names_on

pytestmark = pytest.mark.slow

pytest.importorskip("obstore")

URL = "http://host:1/data/x.zarr/"
LONG = "a_very_long_name_of_a_variable_that_nginx_cuts_off"
PYTHON = """<!DOCTYPE HTML>
<html lang="en"><head><meta charset="utf-8"><title>Directory listing for /data/x.zarr/</title></head>
<body><h1>Directory listing for /data/x.zarr/</h1><hr><ul>
{}
</ul><hr></body></html>
"""
NGINX = f"""<html>\r
<head><title>Index of /data/x.zarr/</title></head>\r
<body>\r
<h1>Index of /data/x.zarr/</h1><hr><pre><a href="../">../</a>\r
<a href="{LONG}/">a_very_long_name_of_a_variable_tha..&gt;</a> 01-Jan-2026 10:00      -\r
<a href="sst%3Amean/">sst:mean/</a>                  01-Jan-2026 10:00                   -\r
<a href="zarr.json">zarr.json</a>                  01-Jan-2026 10:00                 171\r
</pre><hr></body>\r
</html>\r
"""
APACHE = """<!DOCTYPE HTML PUBLIC "-//W3C//DTD HTML 3.2 Final//EN">
<html>
 <head>
  <title>Index of /data/x.zarr</title>
 </head>
 <body>
<h1>Index of /data/x.zarr</h1>
  <table>
   <tr><th><img src="/icons/blank.gif" alt="[ICO]"></th><th><a href="?C=N;O=D">Name</a></th></tr>
<tr><td><a href="/data/">Parent Directory</a></td><td>&nbsp;</td></tr>
<tr><td><a href="./sst:mean/">sst:mean/</a></td><td align="right">  - </td></tr>
<tr><td><a href="t&amp;u/">t&amp;u/</a></td><td align="right">  - </td></tr>
<tr><td><a href="zarr.json">zarr.json</a></td><td align="right">171 </td></tr>
</table>
<address>Apache/2.4.62 (Debian) Server at <a href="mailto:me@host">host</a> Port 80</address>
</body></html>
"""


def linked(*links: str) -> str:
    return PYTHON.format("\n".join(f'<li><a href="{link}">name</a></li>' for link in links))


LEADING_ELSEWHERE = [
    *("", "/", ".", "./", "..", "../", "../x/", "../../etc/passwd", "/etc/passwd", "/data/y.zarr/", "x/y/"),
    *("%2e%2e/", "%2E%2E", ".%2e/", "a%2Fb", "..%2f..%2fetc", "%2Fetc/", "a%00b/", "a%0Ab/", "%FF%FE/"),
    *("./../x", "?C=N;O=D", "x?y", "#top", "x/#y", "mailto:me", "javascript:x", "data:x", "c:/x"),
    *("http://other/data/x.zarr/a/", "//other/a/", "http://host:2/data/x.zarr/a/", "http://[", "//["),
    *("file:///etc/passwd", "ftp://host:1/data/x.zarr/a/", f"http://other/?to={URL}a"),
]
PAGES: dict[str, tuple[str, set[str], set[str]]] = {
    **{f"elsewhere: {link}": (linked(link, "b/"), set(), {"b"}) for link in LEADING_ELSEWHERE},
    "python": (linked("a/", "%C3%A9%20b/", "zarr.json"), {"zarr.json"}, {"a", "\u00e9 b"}),
    "nginx": (NGINX, {"zarr.json"}, {LONG, "sst:mean"}),
    "apache": (APACHE, {"zarr.json"}, {"sst:mean", "t&u"}),
    "empty": (linked(), set(), set()),
    # The square of a million letters would take hours.
    "one name many times": (linked(*["a/"] * 10**5), set(), {"a"}),
    "a long tag": (linked("a/").replace("<ul>", "<a " + "x" * 10**6), set(), {"a"}),
    "many tags that do not end": (linked("a/").replace("<ul>", "<a " * 10**6), set(), {"a"}),
    "many attributes": (linked("a/").replace("<ul>", "<a " + "href='" * 10**6), {"href="}, {"a"}),
    "blanks": (linked("a/").replace("<h1>", "<h1>" + " " * 10**6 + "<h1>" * 10**5), set(), {"a"}),
}


@pytest.mark.parametrize("kind", PAGES)
def test_names_on_pages_of_servers(kind: str) -> None:
    page, files, folders = PAGES[kind]
    assert names_on(page, URL) == (files, folders)


REFUSED: dict[str, str] = {
    "nothing": "",
    "a page for a login": "<html><title>Log in</title><form>Password</form><a href='a/'>a</a></html>",
    "a page of somebody": "<html><h1>Index of refraction</h1><a href='a/'>a</a></html>",
    "a child by its path": linked("a/", "/data/x.zarr/b/"),
    "a child by its URL": linked("a/", f"{URL}b"),
    "a child by a detour": linked("a/", "b/../c/"),
    "a child with two slashes": linked("a/", "b//"),
    "no end": linked("a/").partition("</ul>")[0],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_names_on_refuses_what_is_no_whole_list(kind: str) -> None:
    refused(AnswerError, None, lambda: names_on(REFUSED[kind], URL))


def serving(handler: Callable[..., Any], folder: Path) -> AbstractContextManager[str]:
    return answered_by(partial(handler, directory=str(folder)))


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Python's server of a directory; pages of folders are sent if there is something else for them."""

    page: Callable[[], Iterable[bytes]] | None = None
    status = 200
    needs = ""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        if self.needs and self.headers[self.needs] != "k":
            self.send_error(401)
        elif self.page is None or not self.path.endswith("/"):
            super().do_GET()
        else:
            self.send_response(self.status)
            self.send_header("Content-Type", "text/html")
            self.send_header("Location", "/")
            self.end_headers()
            with suppress(OSError):  # The reader has hung up.
                for piece in type(self).page():
                    self.wfile.write(piece)


def strange(page: Callable[[], Iterable[bytes]], **said: Any) -> type[Quiet]:
    return type("Sent", (Quiet,), {"page": staticmethod(page), **said})


def fill(store: Any, **options: Any) -> xr.Dataset:
    ds = xr.Dataset({"t": ("x", np.arange(10.0)), "a b": ("x", np.ones(10))}, coords={"x": np.arange(10)})
    xzarr3.to_zarr(ds, store, consolidated=False, **options)
    xzarr3.to_zarr(ds[["t"]], store, group="g/\u00e9", consolidated=False, **options)
    return ds


@pytest.mark.parametrize("zarr_format", [3, 2, "3-draft"])
def test_groups_without_consolidated_metadata_are_found(zarr_format: Any, tmp_path: Path) -> None:
    ds = fill(tmp_path / "x \u00e9.zarr", zarr_format=zarr_format)
    with serving(Quiet, tmp_path) as url:
        place = f"{url}/x \u00e9.zarr"  # Not encoded.
        xr.testing.assert_identical(xr.open_dataset(place, engine="xzarr3").load(), ds)
        assert set(xr.open_groups(place, engine="xzarr3")) == {"/", "/g", "/g/\u00e9"}
        group = xzarr3.open_group(place)
        assert sorted(group) == ["a b", "g", "t", "x"]
        assert sorted(xzarr3.copy(place, MemoryStore())) == sorted(group)


@pytest.mark.parametrize("needs", ["", "X-Key", "Authorization"])
def test_list_dir_of_a_web_server(needs: str, tmp_path: Path) -> None:
    """Also through wrappers, and with headers."""
    for key in ("g/zarr.json", "g/a/zarr.json"):
        xzarr3.LocalStore(tmp_path).set(key, b"{}")
    with serving(type("Guarded", (Quiet,), {"needs": needs}), tmp_path) as url:
        options = {"client_options": {"default_headers": {needs or "X": "k"}}}
        store = ReadOnlyStore(WrapperStore(xzarr3.open_store(url, options)))
        assert store.list_dir("g/") == ({"g/zarr.json"}, {"g/a/"})
        assert (store.traits.browsable, store.listable) == (True, False)
        refused(StoreCapabilityError, "cannot be listed", store.list)
        if needs:
            refused(xzarr3.StorePermissionError, "401", lambda: xzarr3.open_store(url).list_dir("g/"))


def drops() -> Iterator[bytes]:
    while True:  # Until the reader has hung up.
        time.sleep(0.05)
        yield b" "


UNLISTED: dict[str, tuple[type[Quiet], str]] = {
    "none": (strange(lambda: [b"no"], status=404), "404"),
    "refused": (strange(lambda: [b"no"], status=403), "403"),
    "a login": (strange(lambda: [b"<html><form>Password</form></html>"]), "no list of a folder"),
    "elsewhere": (strange(lambda: [b""], status=302), "status 302"),
    "no text": (strange(lambda: [b"\xff\xfe"]), "no text"),
    "many names": (strange(lambda: [linked(*map(str, range(10**6))).encode()]), "more than"),
    "no end": (strange(lambda: itertools.repeat(b"<a href='a/'>a</a>" * 1000)), "more than"),
    "drops": (strange(drops), "took over 1 s"),
}


@pytest.mark.parametrize("kind", UNLISTED)
def test_list_dir_without_a_page_names_consolidated_metadata(kind: str, tmp_path: Path) -> None:
    handler, why = UNLISTED[kind]
    options = {"deadline": 1} if kind == "drops" else {}
    with serving(handler, tmp_path) as url:
        store = xzarr3.open_store(url, options)
        said = f"keys below 'g/'.*{why}.*consolidated"
        refused(StoreCapabilityError, said, lambda: store.list_dir("g/"))


def test_list_dir_asks_again_for_a_page_without_its_end(tmp_path: Path) -> None:
    pages = iter([linked("a/").partition("</body>")[0], linked("a/", "b/"), ""])
    with serving(strange(lambda: [next(pages).encode()]), tmp_path) as url:
        assert xzarr3.open_store(url).list_dir("") == (set(), {"a/", "b/"})
        refused(StoreError, None, lambda: xzarr3.open_store(url, {"retries": 0}).list_dir(""))
