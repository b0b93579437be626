"""Open every page of a rendered book in headless Chromium and say what a reader would miss.

``python tests/browser.py [_build/html] [--shots FOLDER]`` does by hand what ``test_book.py`` does.
"""

import argparse
import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        # Asked for by the browser, not by a page: it comes or not with the first page, a redirect without an icon.
        if self.path == "/favicon.ico":
            self.send_response(204)
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(html: Path) -> Iterator[str]:
    """Serve a folder on loopback; yields its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(html)))
    server.handle_error = lambda *_: None  # a browser that closes a connection early is no error
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def visit(html: Path, shots: Path | None = None) -> dict[str, list[str]]:
    """Page → complaints: failed requests, requests to other hosts, console errors, unrendered formulas, overflow."""
    from playwright.sync_api import sync_playwright

    pages = sorted(p.relative_to(html).as_posix() for p in html.rglob("*.html") if "_static" not in p.parts)
    found: dict[str, list[str]] = {}
    with served(html) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-sync",
            ],
        )
        for name in pages:
            complaints = found.setdefault(name, [])
            page = browser.new_page()
            page.on("requestfailed", lambda r, c=complaints: c.append(f"request failed: {r.url}"))
            page.on("request", lambda r, c=complaints: _check_host(r.url, address, c))
            page.on("response", lambda r, c=complaints: c.append(f"{r.status}: {r.url}") if r.status >= 400 else None)
            page.on("console", lambda m, c=complaints: c.append(_told(m)) if m.type == "error" else None)
            page.on("pageerror", lambda e, c=complaints: c.append(f"script: {e}"))
            for size, (width, height) in SIZES.items():
                page.set_viewport_size({"width": width, "height": height})
                if size == "desktop":
                    page.goto(f"{address}/{name}", wait_until="networkidle")
                complaints += [f"{size}: {text}" for text in page.evaluate(_LOOK)]
                if shots:
                    shots.mkdir(parents=True, exist_ok=True)
                    page.screenshot(
                        path=shots / f"{name.replace('/', '_')}.{size}.png", full_page=True, animations="disabled"
                    )
            page.close()
        browser.close()
    return found


def _told(message: "ConsoleMessage") -> str:
    return f"console: {message.text} ({message.location.get('url', '')})"


def _check_host(url: str, address: str, complaints: list[str]) -> None:
    if not url.startswith((address, "data:", "blob:")):
        complaints.append(f"other host: {url}")


_LOOK = r"""() => {
  const bad = [];
  for (const img of document.querySelectorAll('main img'))
    if (!img.complete || img.naturalWidth === 0) bad.push('picture not shown: ' + img.src);
    else if (!img.alt) bad.push('picture without alt text: ' + img.src);
  for (const math of document.querySelectorAll('main .math'))
    if (!math.querySelector('mjx-container')) bad.push('formula not rendered: ' + math.textContent.slice(0, 60));
  if (document.querySelector('main mjx-merror')) bad.push('formula with an error');
  for (const caption of document.querySelectorAll('main caption'))
    if (caption.offsetWidth > caption.parentElement.clientWidth + 2) bad.push('caption cut off');
  for (const cell of document.querySelectorAll('main .tag_parameters pre'))
    if (cell.scrollWidth > cell.clientWidth + 2) bad.push('parameters cut off');
  const wide = document.documentElement.scrollWidth - window.innerWidth;
  if (wide > 2) bad.push('page is ' + wide + ' px wider than the screen');
  return bad;
}"""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("html", type=Path, nargs="?", default=Path("_build/html"))
    parser.add_argument("--shots", type=Path)
    chosen = parser.parse_args()
    for name, complaints in visit(chosen.html, chosen.shots).items():
        print(name, *(complaints or ["ok"]), sep="\n  ")  # noqa: T201
