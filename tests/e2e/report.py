"""The lab's report in a browser: every plot and table is there, fits, and nothing is logged.

Runs experiments in the simulator, writes the page with `picnic lab report`, and renders it in
headless Chromium, in the widths of a desktop and a phone. A script next to the page measures it:
whether the first screen answers each question, the height of the page with folded details, the sizes
of plots and tables, words in plots that are cut off or overlap, and horizontal scrolling of the page
or a table.

    report.py                runs the experiments and checks their report
    report.py FOLDER         checks the report of an earlier run
    report.py --keep FOLDER  screenshots, light and dark, into FOLDER

Exit code 77 means skipped, the reason being the last line printed.
"""

import argparse
import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Bars, lines, logarithms, a paper's figures as points and across; all of the simulator.
EXPERIMENTS = ["picnic-utilization", "picnic-latency", "nicos-edf", "nicos-firewall"]
WIDTHS = {"desk": 1400, "phone": 400}
# Of the page with its details folded: a screen, and for each question or breakdown as much.
TALLEST = {"desk": (1500, 1000), "phone": (2500, 1600)}
LONGEST_TABLE = 12
# For the browser, on a busy machine.
PATIENCE_S = 300
# Chromium needs this much.
LEAST_FREE = 64 << 20
# As `picnic lab breakdown --out` writes them.
BREAKDOWN = {
    "breakdown.json": '{"title": "a card", "components": [{"component": "stack", "fraction": 1.0, '
                      '"ns_per_packet": 812.5}]}\n',
    "stacks.folded": "borrowed core 1;borrowed;poll 60\ncore 0;target;deliver;copy_[k] 30\ncore 0;swapper 10\n",
}

# The page in frames of each width; the result is JSON in `#found`.
HARNESS = """<!DOCTYPE html><meta charset="utf-8"><body>{frames}<pre id="found"></pre><script>
const look = (frame) => {{
  const page = frame.contentDocument, root = page.documentElement;
  const box = (node) => node.getBoundingClientRect();
  const folded = root.scrollHeight;
  const answers = [...page.querySelectorAll('.card')].map((card) => ({{
    name: card.querySelector('a').textContent, bottom: box(card).bottom,
    badge: card.querySelector('.badge').textContent,
    number: card.querySelector('.answer strong')?.textContent || ''}}));
  const links = [...page.querySelectorAll('nav a')].map((link) => link.getAttribute('href'));
  const lost = links.filter((link) => !page.querySelector(link));
  page.querySelectorAll('details').forEach((details) => {{ details.open = true; }});
  const sections = [...page.querySelectorAll('section[id]')].map((section) => ({{
    name: section.id,
    plots: [...section.querySelectorAll('.plot')].map((plot) => {{
      const svg = plot.querySelector('svg'), outer = box(svg);
      const texts = [...svg.querySelectorAll('text')].filter((text) => text.textContent.trim());
      const boxes = texts.map((text) => [text.textContent, box(text)]);
      const isCut = ([, b]) => b.left < outer.left - 1 || b.right > outer.right + 1
        || b.top < outer.top - 1 || b.bottom > outer.bottom + 1;
      const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1
        && a.top < b.bottom - 3 && b.top < a.bottom - 3;
      const on = boxes.flatMap(([a, one], i) => boxes.slice(i + 1)
        .filter(([, other]) => meet(one, other)).map(([b]) => `${{a}} | ${{b}}`));
      return {{title: plot.querySelector('h3').textContent, width: outer.width,
        height: outer.height, shapes: svg.querySelectorAll('path, rect, circle, line').length,
        cut: boxes.filter(isCut).map(([text]) => text), on}};
    }}),
    tables: [...section.querySelectorAll('table')].map((table) => ({{
      height: box(table).height, rows: table.querySelectorAll('tbody tr').length,
      scrolls: table.parentElement.scrollWidth - table.parentElement.clientWidth,
      columns: table.querySelectorAll('thead th').length}})),
  }}));
  const flames = [...page.querySelectorAll('.flame')].map((flame) => ({{
    bars: flame.querySelectorAll('g').length, width: box(flame).width}}));
  return {{sections, flames, answers, links, lost, folded, width: root.clientWidth,
    scrolls: root.scrollWidth, papers: page.querySelector('#papers').textContent, facts:
    page.querySelectorAll('table.facts tr').length}};
}};
addEventListener('load', () => {{
  const found = Object.fromEntries([...document.querySelectorAll('iframe')]
    .map((frame) => [frame.name, look(frame)]));
  document.querySelector('#found').textContent = JSON.stringify(found);
}});
</script></body>"""


def picnic():
    path = os.environ.get("PICNIC", ROOT / "target/debug/picnic")
    return pathlib.Path(path).resolve()


def call(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


def browse(browser, folder, page, *options):
    """What Chromium printed, and what pages logged."""
    words = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--disable-background-networking", "--enable-logging=stderr",
             f"--user-data-dir={folder}/profile", *options, f"file://{page}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode:
        sys.exit(f"failed: {browser} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


def tables_of(markdown):
    """Rows and columns of each table, by the heading of its section."""
    found, name, rows = {}, None, []

    def end():
        if rows:
            cells = re.split(r"(?<!\\)\|", rows[0].strip().strip("|"))
            found.setdefault(name, []).append((len(rows) - 2, len(cells)))
            rows.clear()

    for line in markdown.splitlines():
        if line.startswith("|"):
            rows.append(line)
            continue
        end()
        if line.startswith("## "):
            name = line[3:].strip()
    end()
    return found


def problems(found, report, tables, breakdowns):
    for view, page in found.items():
        if page["scrolls"] > page["width"]:
            yield f"{view}: {page['scrolls']} wide, the window {page['width']}"
        first, each = TALLEST[view]
        if page["folded"] > first + each * (len(report["runs"]) + breakdowns):
            yield f"{view}: {page['folded']} tall"
        yield from (f"{view}: no place for {link}" for link in page["lost"])
        answers = {answer["name"]: answer for answer in page["answers"]}
        for run in report["runs"]:
            answer = answers.get(run["name"])
            if not answer or not answer["badge"] or run["document"] and not answer["number"]:
                yield f"{view}: no answer to {run['name']} on the first screen: {answer}"
            if f"#{run['name']}" not in page["links"]:
                yield f"{view}: {run['name']} is not in the contents"
        if view == "desk" and page["answers"][0]["bottom"] > 900:
            yield f"{view}: the first answer ends at {page['answers'][0]['bottom']}"
        if len(page["flames"]) < breakdowns:
            yield f"{view}: {len(page['flames'])} flame graphs, expected {breakdowns}"
        # Scaled down to a phone, its words could not be read: it scrolls in its frame.
        yield from (f"{view}: flame graph {flame}" for flame in page["flames"]
                    if flame["bars"] < 5 or flame["width"] < 900)
        if not page["facts"]:
            yield f"{view}: no facts of a machine"
        for row in report["rows"]:
            if row["name"] not in page["papers"]:
                yield f"{view}: {row['name']} is not in the papers' table"
        sections = {section["name"]: section for section in page["sections"]}
        for run in report["runs"]:
            name = run["name"]
            section = sections.get(name, {"plots": [], "tables": []})
            if run["document"] and not section["plots"]:
                yield f"{view}: {name} has no plot"
            for plot in section["plots"]:
                where = f"{view}: {name}: {plot['title']}"
                if min(plot["width"], plot["height"]) < 100 or plot["shapes"] < 3:
                    yield f"{where}: {plot['width']} by {plot['height']}, {plot['shapes']} shapes"
                yield from (f"{where}: cut off: {text}" for text in plot["cut"])
                yield from (f"{where}: on each other: {texts}" for texts in plot["on"])
            # The first is the one of the paper's figures.
            own = section["tables"][1:]
            shown = [(table["rows"], table["columns"]) for table in own]
            if any(rows > LONGEST_TABLE for rows, _ in shown):
                yield f"{view}: {name} has tables of {shown}"
            if view == "phone" and any(table["scrolls"] > 0 for table in own):
                yield f"{view}: {name} has a table that must be moved sideways"
            if shown != tables.get(name, []):
                yield f"{view}: {name} has tables of {shown}, expected {tables.get(name, [])}"
            if any(table["height"] < 20 for table in section["tables"]):
                yield f"{view}: {name} has a table without a size"


def full(folder):
    """Says that the disk of a folder is full, if it is: programs report that in many ways."""
    free = shutil.disk_usage(folder).free
    return f"; {folder}: the disk has {free >> 20} MiB free" if free < LEAST_FREE else ""


def checked(args, program, browser, temporary):
    """What the page has in each width, and what is wrong with it."""
    folder = args.folder.resolve() if args.folder else pathlib.Path(temporary) / "all"
    if not args.folder:
        call(program, "lab", "run", *EXPERIMENTS, "--quick", "--out", folder)
        (folder / "one-core").mkdir()
        for name, text in BREAKDOWN.items():
            (folder / "one-core" / name).write_text(text)
    report = json.loads(call(program, "lab", "report", folder, "--json"))
    tables = tables_of(call(program, "lab", "report", folder, "--markdown"))
    call(program, "lab", "report", folder)
    page = folder / "report.html"
    text = html.escape(page.read_text())
    frames = "".join(f'<iframe name="{name}" width="{width}" height="800" srcdoc="{text}">'
                     "</iframe>" for name, width in WIDTHS.items())
    harness = pathlib.Path(temporary) / "harness.html"
    harness.write_text(HARNESS.format(frames=frames))
    _, logged = browse(browser, temporary, page, "--dump-dom")
    dom, more = browse(browser, temporary, harness, "--dump-dom")
    found = re.search(r'<pre id="found">(.*?)</pre>', dom, re.S)
    if not found or not found[1]:
        sys.exit("failed: the page was not laid out")
    found = json.loads(html.unescape(found[1]))
    wrong = [f"logged: {line}" for line in logged + more]
    wrong += problems(found, report, tables, 0 if args.folder else 1)
    if args.keep:
        args.keep.mkdir(parents=True, exist_ok=True)
        shutil.copy(page, args.keep)
        for name, options in {"light": [], "dark": ["--force-dark-mode"]}.items():
            for view, width in WIDTHS.items():
                # A window is at least 500 wide: a frame may be less.
                frame = pathlib.Path(temporary) / "frame.html"
                frame.write_text(f'<body style="margin:0"><iframe style="border:0" width="{width}"'
                                 f' height="{found[view]["folded"]}" srcdoc="{text}"></iframe>')
                height = found[view]["folded"]
                browse(browser, temporary, frame, f"--window-size={max(width, 500)},{height}",
                       *options, f"--screenshot={args.keep.resolve()}/{view}-{name}.png")
    return found, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path)
    args = parser.parse_args()
    browser = shutil.which("chromium")
    if not browser:
        print("chromium is not installed: try `apt-get install chromium`")
        return 77
    program = picnic()
    if not program.exists():
        print(f"{program} is not there: cargo build")
        return 77
    # Parts of the browser may end after it, and write to their files until then.
    with tempfile.TemporaryDirectory(prefix="picnic-report-", ignore_cleanup_errors=True) as temporary:
        try:
            found, wrong = checked(args, program, browser, temporary)
        except OSError as error:
            sys.exit(f"failed: {error.filename or temporary}: {error.strerror}{full(temporary)}")
        except SystemExit as failed:
            sys.exit(f"{failed}{full(temporary)}")
    for line in wrong:
        print(line)
    plots = sum(len(section["plots"]) for section in found["desk"]["sections"])
    count = sum(len(section["tables"]) for section in found["desk"]["sections"])
    print(f"{plots} plots and {count} tables in {len(found)} widths, {len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
