#include "report/html_style.h"

namespace precis {
namespace {

// Colours of both themes. Text reaches 4.5:1 on every ground it lies on, lines and marks 3:1; a
// test computes it from here. h0 to h9 are the levels of heat maps, t0 to t9 the text on them.
constexpr const char* kLight = R"css(
color-scheme: light;
--ground: #ffffff; --raised: #f4f6f9; --ink: #1b1f24; --muted: #57606a; --rule: #c9d1da;
--link: #0b57d0; --focus: #0b57d0; --better: #146c43; --worse: #a4262c; --grid: #e3e7ec;
--s0: #1f5fbf; --s1: #b04c06; --s2: #1a7a46; --s3: #7b3fb5; --s4: #bf2438; --s5: #0b6f82;
--s6: #7a5a1e; --s7: #ad2f7c; --ref: #3d444d;
--h0: #eef3fa; --h1: #d9e6f5; --h2: #bcd5ee; --h3: #97bfe4; --h4: #6ea6d8; --h5: #4a8ac8;
--h6: #2f6caf; --h7: #1f5597; --h8: #143d75; --h9: #0b2750;
--t0: #000000; --t1: #000000; --t2: #000000; --t3: #000000; --t4: #000000; --t5: #000000;
--t6: #ffffff; --t7: #ffffff; --t8: #ffffff; --t9: #ffffff;
)css";

constexpr const char* kDark = R"css(
color-scheme: dark;
--ground: #14171b; --raised: #1d2228; --ink: #e6e9ed; --muted: #a7b0ba; --rule: #414a55;
--link: #7ab7ff; --focus: #7ab7ff; --better: #6fd79b; --worse: #ff9a9a; --grid: #2a3038;
--s0: #7fb2ff; --s1: #ffa75e; --s2: #62d394; --s3: #c69bff; --s4: #ff8a8f; --s5: #5cd0e0;
--s6: #d9b36c; --s7: #ff9bd2; --ref: #c4cbd3;
--h0: #1b2530; --h1: #20344a; --h2: #254563; --h3: #2b587f; --h4: #346c9a; --h5: #4a8bc0;
--h6: #64a4d6; --h7: #88bce6; --h8: #b0d5f3; --h9: #dcedfb;
--t0: #ffffff; --t1: #ffffff; --t2: #ffffff; --t3: #ffffff; --t4: #ffffff; --t5: #000000;
--t6: #000000; --t7: #000000; --t8: #000000; --t9: #000000;
)css";

constexpr const char* kPage = R"css(
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--focus); outline-offset: 2px; }
.skip { position: absolute; left: -999em; }
.skip:focus { left: 8px; top: 8px; background: var(--ground); padding: 8px 12px; z-index: 9; }
.heard { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%);
  white-space: nowrap; }
header, main, footer { max-width: 1240px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 28px; display: flex; flex-wrap: wrap; gap: 12px; align-items: flex-start;
  justify-content: space-between; }
h1 { font-size: 1.75rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin: 44px 0 8px; padding-top: 12px; border-top: 1px solid var(--rule);
  overflow-wrap: anywhere; }
h3 { font-size: 1.05rem; margin: 28px 0 6px; overflow-wrap: anywhere; }
p { max-width: 76ch; margin: 8px 0; overflow-wrap: anywhere; }
.lead { color: var(--muted); margin: 4px 0 0; }
.note, figcaption, caption { color: var(--muted); font-size: 0.92rem; }
.warning { border-left: 4px solid var(--worse); padding: 4px 12px; background: var(--raised); }
button { font: inherit; color: var(--ink); background: var(--raised); border: 1px solid var(--muted);
  border-radius: 6px; padding: 6px 14px; cursor: pointer; min-height: 36px; }
button:hover { border-color: var(--ink); }
nav ul { list-style: none; margin: 18px 0 0; padding: 0; display: flex; flex-wrap: wrap;
  gap: 6px 18px; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 4px 18px; margin: 12px 0; }
dt { color: var(--muted); }
dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 560px) { dl { grid-template-columns: minmax(0, 1fr); } dd { margin-bottom: 6px; } }
code, pre { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: 0.9em; overflow-wrap: anywhere; }
pre { white-space: pre-wrap; background: var(--raised); padding: 10px 12px; border-radius: 6px;
  margin: 8px 0; }
details { margin: 8px 0; }
summary { cursor: pointer; color: var(--link); padding: 4px 0; width: fit-content; }
.scroll { overflow-x: auto; max-width: 100%; position: relative; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums;
  margin: 6px 0; }
caption { text-align: left; padding: 4px 0 6px; }
th, td { padding: 5px 9px; text-align: left; vertical-align: top; border-bottom: 1px solid var(--rule);
  unicode-bidi: isolate; }
td { min-width: 4.5em; }
td:not(.n) { min-width: 9em; }
tbody th { font-weight: 600; position: sticky; left: 0; background: var(--ground);
  min-width: min(11em, 40vw); max-width: min(26em, 44vw);
  overflow-wrap: break-word; }
thead th { background: var(--raised); vertical-align: bottom; font-weight: 600; }
.n { text-align: right; white-space: nowrap; }
thead .n { white-space: normal; }
tbody tr:hover td, tbody tr:hover th { background: var(--raised); }
.answers td { min-width: 14em; max-width: 30em; white-space: pre-wrap; overflow-wrap: anywhere; }
.answers td.n { min-width: 4.5em; white-space: nowrap; }
.sort { border: 0; background: none; padding: 2px; margin: -2px; font-weight: 600; text-align: inherit;
  min-height: 28px; border-radius: 3px; }
.sort::after { content: "\2195"; color: var(--muted); padding-left: 4px; }
th[aria-sort=ascending] .sort::after { content: "\2191"; color: var(--ink); }
th[aria-sort=descending] .sort::after { content: "\2193"; color: var(--ink); }
.better { color: var(--better); }
.worse { color: var(--worse); }
figure { margin: 16px 0 22px; }
figcaption { font-weight: 600; color: var(--ink); margin-bottom: 4px; overflow-wrap: anywhere; }
.many { display: flex; flex-wrap: wrap; gap: 8px 28px; }
.many > figure { max-width: 100%; min-width: 0; }
figure svg { display: block; height: auto; max-width: max(100%, 560px); }
figure.small svg { max-width: max(100%, 300px); }
.shaded { line-height: 1.9; max-width: 100ch; font-size: 0.92rem; }
.shaded span { padding: 2px 3px; border-radius: 3px; white-space: pre-wrap; overflow-wrap: anywhere; }
footer { margin-top: 48px; padding-bottom: 32px; color: var(--muted); font-size: 0.92rem; }
)css";

constexpr const char* kDrawing = R"css(
svg text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif;
  fill: var(--ink); }
svg .axistitle { fill: var(--muted); }
svg .muted { fill: var(--muted); }
.grid { stroke: var(--grid); fill: none; }
.axis { stroke: var(--muted); fill: none; }
.split { stroke: var(--ground); fill: none; stroke-width: 1; }
.line { fill: none; stroke-width: 2.2; stroke: currentColor; }
.bar { fill: none; stroke-width: 1.5; stroke: currentColor; }
.mark { fill: currentColor; stroke: var(--ground); stroke-width: 1; }
.fill { fill: currentColor; }
.chance { fill: none; stroke: var(--muted); stroke-width: 1.8; stroke-dasharray: 1.5 5;
  stroke-linecap: round; }
.refline { fill: none; stroke: var(--ref); stroke-width: 1.2; }
.ref { color: var(--ref); }
.s0 { color: var(--s0); }
.s1 { color: var(--s1); }
.s2 { color: var(--s2); }
.s3 { color: var(--s3); }
.s4 { color: var(--s4); }
.s5 { color: var(--s5); }
.s6 { color: var(--s6); }
.s7 { color: var(--s7); }
.line.s1 { stroke-dasharray: 9 4; }
.line.s2 { stroke-dasharray: 3 3; }
.line.s3 { stroke-dasharray: 12 3 3 3; }
.line.s4 { stroke-dasharray: 6 3; }
.line.s5 { stroke-dasharray: 12 3 3 3 3 3; }
.line.s6 { stroke-dasharray: 2 5; }
.line.s7 { stroke-dasharray: 16 4; }
.cell { stroke: var(--ground); stroke-width: 1; }
.none { fill: none; stroke: var(--rule); stroke-dasharray: 2 3; }
.hit { fill: transparent; }
.hit:hover { stroke: var(--ink); stroke-width: 1; }
)css";

constexpr const char* kPrint = R"css(
@page { size: landscape; margin: 12mm; }
@media print {
  .skip, #theme, nav { display: none; }
  body { font-size: 10.5pt; }
  header, main, footer { max-width: none; padding: 0; }
  .scroll { overflow: visible; }
  table { font-size: 8.5pt; }
  td, td:not(.n), .answers td, .answers td.n, tbody th { min-width: 0; }
  th, td { padding: 2px 4px; }
  td, th, .n { white-space: normal; }
  tbody th { position: static; max-width: none; }
  figure svg { max-width: 100%; height: auto; }
  figure, tr { break-inside: avoid; }
  h2, h3, caption, figcaption { break-after: avoid; }
  details:not([open]), summary { display: none; }
  .sort::after { content: none; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
)css";

std::string level_rules() {
  std::string out;
  for (char level = '0'; level <= '9'; ++level) {
    const std::string n(1, level);
    out += ".h" + n + " { fill: var(--h" + n + "); }\n";
    out += "svg .t" + n + " { fill: var(--t" + n + "); }\n";
    out += ".k" + n + " { background: var(--h" + n + "); color: var(--t" + n + "); }\n";
  }
  return out;
}

}  // namespace

std::string report_style() {
  std::string out = std::string(":root {") + kLight + "}\n";
  out += std::string("@media (prefers-color-scheme: dark) { :root:not([data-theme=light]) {") +
         kDark + "} }\n";
  out += std::string(":root[data-theme=dark] {") + kDark + "}\n";
  out += kPage;
  out += kDrawing;
  out += level_rules();
  out += kPrint;
  // Paper is white, whatever the screen was.
  out += std::string("@media print { :root:root:root:root {") + kLight + "} }\n";
  return out;
}

}  // namespace precis
