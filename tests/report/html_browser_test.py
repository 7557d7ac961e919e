"""The HTML report in a real browser: no errors, no requests, both themes, the keyboard, narrow screens.

Needs Chromium; without it the test is skipped. `html_browser_test.py FOLDER` also leaves pictures there.
"""

import json
import os
import re
import sys
import tempfile
import unittest

import browser
import report_page
import sample_results

CHROMIUM = browser.find_chromium()
PICTURES = None

# The luminance and contrast of WCAG 2.2, computed in the page from what is really shown.
CONTRAST = """
(function () {
  function channel(v) { v /= 255; return v <= 0.04045 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4); }
  function parse(text) { return text.match(/[\\d.]+/g).map(Number); }
  function luminance(c) { return 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]); }
  function contrast(a, b) {
    var x = luminance(a), y = luminance(b);
    return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
  }
  function ground(element) {
    for (; element; element = element.parentElement) {
      var c = parse(getComputedStyle(element).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  }
  var out = [];
  document.querySelectorAll("body *").forEach(function (e) {
    var own = Array.prototype.some.call(e.childNodes, function (n) { return n.nodeType === 3 && n.data.trim(); });
    if (!own || e.closest("script, style, title, desc")) return;
    var svg = e.closest("svg");
    var under = ground(e);
    var level = svg && e.classList.value.match(/\\bt(\\d)\\b/);
    if (level) {
      var cell = svg.querySelector(".h" + level[1]);
      under = parse(getComputedStyle(cell).fill);
    }
    var over = parse(svg ? getComputedStyle(e).fill : getComputedStyle(e).color);
    out.push([contrast(over, under), e.tagName + "." + (e.getAttribute("class") || ""), e.textContent.slice(0, 30)]);
  });
  document.querySelectorAll(".line, .bar, .mark, .chance, .fill").forEach(function (e) {
    var style = getComputedStyle(e);
    var paint = style.fill !== "none" ? style.fill : style.stroke;
    // 3:1 is asked of drawings: scaled to text's 4.5.
    out.push([contrast(parse(paint), ground(e)) * 1.5, e.tagName + "." + e.getAttribute("class"), ""]);
  });
  out.sort(function (a, b) { return a[0] - b[0]; });
  return out.slice(0, 5);
})()
"""


class ReportInBrowser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        files = sample_results.write_all(cls.folder.name)
        cls.path = os.path.join(cls.folder.name, "report.html")
        report_page.make("html", "", cls.path, files)
        cls.page = browser.Browser(CHROMIUM)

    @classmethod
    def tearDownClass(cls):
        cls.page.close()
        cls.folder.cleanup()

    def open(self, width=1280, scheme="light", path=None):
        self.page.prefer(scheme)
        self.page.resize(width, 900)
        self.page.open(path or self.path)

    def picture(self, name):
        if PICTURES:
            self.page.screenshot(os.path.join(PICTURES, name + ".png"))

    def test_nothing_goes_wrong_and_nothing_is_requested(self):
        self.open()
        self.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        self.page.evaluate("document.querySelectorAll('button').forEach(b => b.click())")
        self.assertEqual(self.page.faults(), [])
        self.assertEqual(self.page.requests(), ["file://" + self.path])

    def test_the_page_forbids_requests_and_other_scripts(self):
        """The policy is really in force: what the page did not bring itself is blocked."""
        self.open()
        self.page.evaluate("new Promise(r => { var i = new Image(); i.onerror = r; i.src = 'http://127.0.0.1:9/x'; })")
        self.page.evaluate("(function () { var s = document.createElement('script'); s.textContent = 'window.bad = 1';"
                           " document.body.appendChild(s); })()")
        self.assertIsNone(self.page.evaluate("window.bad"))
        self.assertEqual(len([f for f in self.page.faults() if "Content Security Policy" in f]), 2)

    def test_pictures_have_names_descriptions_and_numbers(self):
        self.open()
        n = self.page.evaluate("document.querySelectorAll('svg').length")
        self.assertGreater(n, 30)
        wrong = self.page.evaluate("""
          Array.from(document.querySelectorAll('svg')).filter(function (s) {
            var ids = (s.getAttribute('aria-labelledby') || '').split(' ');
            var named = ids.length === 2 && ids.every(function (id) {
              var e = document.getElementById(id);
              return e && s.contains(e) && e.textContent.length > 3;
            });
            var table = s.closest('figure').querySelector('details table');
            return s.getAttribute('role') !== 'img' || !named || !table || !table.tBodies[0].rows.length;
          }).map(s => s.textContent.slice(0, 80))""")
        self.assertEqual(wrong, [])
        for name in ("Average score over 6 tasks", "Score by depth and length: selkv @ 25%", "share of positions kept",
                     "Decoding speed", "Divergence from the full cache", "mean merged mass", "residual"):
            self.assertGreater(self.page.evaluate(
                "Array.from(document.querySelectorAll('svg > title')).filter(t => t.textContent.includes(%s)).length"
                % json.dumps(name)), 0, name)
        # Drawings lie inside of their frames.
        outside = self.page.evaluate("""
          Array.from(document.querySelectorAll('svg')).filter(function (s) {
            if (!s.getBoundingClientRect().width) return false;
            var b = s.getBBox(), v = s.viewBox.baseVal;
            return b.x < -1 || b.y < -1 || b.x + b.width > v.width + 1 || b.y + b.height > v.height + 1;
          }).map(s => s.querySelector('title').textContent)""")
        self.assertEqual(outside, [])

    def test_tables_are_tables(self):
        self.open()
        wrong = self.page.evaluate("""
          Array.from(document.querySelectorAll('table')).filter(function (t) {
            return !t.caption || !t.caption.textContent ||
              Array.from(t.tHead.rows[0].cells).some(c => c.tagName !== 'TH' || c.scope !== 'col') ||
              Array.from(t.tBodies[0].rows).some(r => r.cells[0].scope !== 'row' ||
                                                      r.cells.length !== t.tHead.rows[0].cells.length);
          }).map(t => t.caption && t.caption.textContent)""")
        self.assertEqual(wrong, [])
        ids = self.page.evaluate("Array.from(document.querySelectorAll('[id]')).map(e => e.id)")
        self.assertEqual(len(ids), len(set(ids)))
        loose = self.page.evaluate("""
          Array.from(document.querySelectorAll('[aria-labelledby]')).filter(e =>
            e.getAttribute('aria-labelledby').split(' ').some(i => !document.getElementById(i))).length""")
        self.assertEqual(loose, 0)
        self.assertEqual(self.page.evaluate("document.querySelectorAll('a').length - Array.from(document."
                                            "querySelectorAll('a')).filter(a => document.querySelector("
                                            "a.getAttribute('href'))).length"), 0)

    def test_the_button_changes_the_theme(self):
        for scheme in ("light", "dark"):
            self.open(scheme=scheme)
            ground = "getComputedStyle(document.body).backgroundColor"
            before = self.page.evaluate(ground)
            self.picture(scheme)
            other = "Dark theme" if scheme == "light" else "Light theme"
            self.assertEqual(self.page.evaluate("document.getElementById('theme').textContent"), other)
            self.page.evaluate("document.getElementById('theme').click()")
            changed = self.page.evaluate(ground)
            self.assertNotEqual(changed, before)
            self.page.evaluate("document.getElementById('theme').click()")
            self.assertEqual(self.page.evaluate(ground), before)
            if scheme == "dark":
                self.assertEqual(changed, "rgb(255, 255, 255)")

    def test_contrast_in_both_themes(self):
        for scheme in ("light", "dark"):
            self.open(scheme=scheme)
            self.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
            worst = self.page.evaluate(CONTRAST)
            self.assertGreaterEqual(worst[0][0], 4.5, (scheme, worst))

    def test_columns_sort(self):
        self.open()
        self.page.evaluate("window.t = Array.from(document.querySelectorAll('table')).find(t => "
                           "t.caption.textContent.includes('average over tasks'))")
        scores = "Array.from(t.tBodies[0].rows).map(r => parseFloat(r.cells[2].textContent))"
        header = "t.tHead.rows[0].cells[2]"
        plain = self.page.evaluate(scores)
        for state, order in (("ascending", sorted(plain)), ("descending", sorted(plain, reverse=True))):
            self.page.evaluate(header + ".querySelector('button').click()")
            self.assertEqual(self.page.evaluate(header + ".getAttribute('aria-sort')"), state)
            self.assertEqual(self.page.evaluate(scores), order)
        self.page.evaluate("t.tHead.rows[0].cells[0].querySelector('button').click()")
        self.assertIsNone(self.page.evaluate(header + ".getAttribute('aria-sort')"))
        names = self.page.evaluate("Array.from(t.tBodies[0].rows).map(r => r.cells[0].textContent)")
        self.assertEqual(names[0], "full")
        self.assertEqual(names[1:4], ["selkv @ 10%", "selkv @ 25%", "selkv @ 50%"])

    def test_keyboard(self):
        self.open()
        focused = "(document.activeElement.textContent || '').trim().slice(0, 40)"
        self.page.press("Tab")
        self.assertEqual(self.page.evaluate(focused), "Skip to the results")
        self.assertGreaterEqual(self.page.evaluate("document.activeElement.getBoundingClientRect().left"), 0)
        self.page.press("Tab")
        self.assertEqual(self.page.evaluate(focused), "Dark theme")
        self.page.press("Enter", text="\r")
        self.assertEqual(self.page.evaluate("document.documentElement.dataset.theme"), "dark")
        # Every region that scrolls takes the focus, and everything with a name is a native control.
        self.assertEqual(self.page.evaluate("Array.from(document.querySelectorAll('.scroll')).filter(e => "
                                            "e.tabIndex !== 0 || e.getAttribute('role') !== 'region').length"), 0)
        self.assertEqual(self.page.evaluate("document.querySelectorAll('[onclick], [role=button]').length"), 0)

    def test_narrow_screens(self):
        for opened in (False, True):
            self.open(width=360)
            if opened:
                self.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
            self.assertLessEqual(self.page.evaluate("document.documentElement.scrollWidth"), 360)
        # Small charts are seen whole.
        self.assertEqual(self.page.evaluate("Array.from(document.querySelectorAll('figure.small svg')).filter(s => "
                                            "s.viewBox.baseVal.width <= 400 && s.getBoundingClientRect().right > 360)"
                                            ".length"), 0)
        self.page.evaluate("scrollTo(0, 0)")
        self.picture("narrow")

    def test_without_script_it_reads_the_same(self):
        with open(self.path, encoding="utf-8") as file:
            html = file.read()
        bare = os.path.join(self.folder.name, "bare.html")
        with open(bare, "w", encoding="utf-8") as file:
            file.write(re.sub(r"<script>.*?</script>", "", html, flags=re.S))
        text = "document.querySelector('main').innerText.replace(/\\s+/g, '')"
        self.open(path=bare)
        without = self.page.evaluate(text)
        self.assertTrue(self.page.evaluate("document.getElementById('theme').hidden"))
        self.open()
        self.assertEqual(self.page.evaluate(text), without)

    def test_hostile_text_stays_text(self):
        files = report_page.hostile_files(self.folder.name)
        path = os.path.join(self.folder.name, "hostile.html")
        report_page.make("html", "", path, files)
        self.open(path=path)
        self.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        self.assertEqual(self.page.faults(), [])
        self.assertIsNone(self.page.evaluate("window.bad"))
        self.assertEqual(self.page.evaluate("document.querySelectorAll('script').length"), 1)
        self.assertEqual(self.page.evaluate("document.querySelectorAll('img, iframe, b, i, a[href^=j]').length"), 0)
        self.assertIn("<script>window.bad=1</script>", self.page.evaluate("document.body.textContent"))

    def test_paper(self):
        self.open(scheme="dark")
        self.page.prefer("dark", "print")
        self.assertEqual(self.page.evaluate("getComputedStyle(document.body).backgroundColor"), "rgb(255, 255, 255)")
        self.assertEqual(self.page.evaluate("getComputedStyle(document.querySelector('nav')).display"), "none")
        # A sheet of A4 across, 297 mm less its margins: nothing is cut off.
        self.page.resize(1031, 700)
        wide = self.page.evaluate("""
          Array.from(document.querySelectorAll('table, svg')).filter(function (e) {
            return e.getBoundingClientRect().width && e.getBoundingClientRect().right > 1032;
          }).map(e => (e.caption || e.querySelector('title')).textContent)""")
        self.assertEqual(wide, [])
        self.page.prefer("dark")
        if PICTURES:
            self.page.pdf(os.path.join(PICTURES, "paper.pdf"))


if __name__ == "__main__":
    if not CHROMIUM:
        print("skipped: no chromium")
        sys.exit(77)
    if len(sys.argv) > 1 and os.path.isdir(sys.argv[1]):
        PICTURES = sys.argv.pop(1)
    unittest.main()
