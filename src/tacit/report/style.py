"""The look and the behaviour of a report's page: plain CSS and a little script, nothing fetched."""

CSS = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1c2024; --quiet: #5c6670; --line: #e1e5e9;
  --card: #f6f7f9; --mark: #8a5a00; --mark-paper: #fff4dc; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --ink: #e6e9ec; --quiet: #9aa4ae; --line: #2c3238;
  --card: #1c2126; --mark: #f0c674; --mark-paper: #2e2716; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 40px 24px 80px; }
h1 { font-size: 28px; line-height: 1.25; margin: 0 0 4px; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 48px 0 4px; }
h3 { font-size: 15px; margin: 0 0 2px; }
p { margin: 0 0 8px; }
.quiet, figcaption { color: var(--quiet); font-size: 14px; }
.note { color: var(--quiet); font-size: 14px; max-width: 88ch; margin-bottom: 12px; }
.mark { display: inline-block; vertical-align: 2px; margin-left: 8px; padding: 1px 8px; border-radius: 10px;
  font-size: 12px; font-weight: 500; color: var(--mark); background: var(--mark-paper); white-space: nowrap; }
.card .mark { margin: 8px 0 0; white-space: normal; }
.alert { border-left: 3px solid var(--mark); background: var(--mark-paper); padding: 10px 14px; margin: 20px 0 0;
  border-radius: 0 6px 6px 0; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(280px, 1fr)); gap: 14px; margin-top: 12px; }
.card { background: var(--card); border-radius: 8px; padding: 14px 16px; border-top: 3px solid var(--tone); }
.card p:last-child { margin-bottom: 0; }
.card .figure { font-size: 22px; font-weight: 600; font-variant-numeric: tabular-nums; }
.card .sentence { font-size: 14px; margin-top: 6px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; margin-top: 10px; }
th { text-align: left; font-weight: 600; color: var(--quiet); font-size: 13px; vertical-align: bottom; }
th, td { padding: 7px 12px 7px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.name { white-space: nowrap; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.sum td { font-weight: 600; }
tr.first td { border-top: 2px solid var(--line); }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 50%; margin-right: 7px; }
.legend { display: flex; flex-wrap: wrap; gap: 8px; margin: 18px 0 0; padding: 8px 0; position: sticky; top: 0;
  background: var(--paper); z-index: 5; }
.legend button { font: inherit; font-size: 14px; color: var(--ink); background: var(--card); cursor: pointer;
  border: 1px solid var(--line); border-radius: 16px; padding: 3px 12px; }
.legend button[aria-pressed="false"] { opacity: 0.4; text-decoration: line-through; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(320px, 100%), 1fr)); gap: 18px; }
.panel { min-width: 0; }
.chart { height: 340px; width: 100%; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); gap: 0 32px; }
.pair > section { min-width: 0; }
.pair .chart { height: 300px; }
details { border-top: 1px solid var(--line); padding: 10px 0; }
details:last-of-type { border-bottom: 1px solid var(--line); }
summary { cursor: pointer; font-weight: 600; font-size: 15px; overflow-wrap: anywhere; }
pre { overflow-x: auto; background: var(--card); border-radius: 8px; padding: 14px 16px; font-size: 13px;
  line-height: 1.5; }
@media (max-width: 600px) { main { padding: 24px 16px 56px; } h1 { font-size: 23px; } h2 { margin-top: 36px; }
  .chart { height: 300px; } .wide { display: none; } th.n { white-space: normal; } }
@media print { .legend { position: static; } }
"""

SCRIPT = """
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const value = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function axis(given) {
  return { ...given, gridcolor: value("--line"), linecolor: value("--line"), zeroline: false, automargin: true,
    fixedrange: false, title: { text: given.title, font: { size: 13 }, standoff: 8 } };
}
function layout(given) {
  return { ...given, xaxis: axis(given.xaxis), yaxis: axis(given.yaxis), paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)", font: { color: value("--ink"), size: 13, family: "system-ui, sans-serif" },
    hoverlabel: { bgcolor: value("--card"), bordercolor: value("--line"), font: { color: value("--ink") },
      namelength: -1 },
    // where a finger scrolls, dragging must not zoom
    dragmode: window.matchMedia("(pointer: coarse)").matches ? false : "zoom" };
}
const charts = [...document.querySelectorAll(".chart")].map(place => {
  const given = JSON.parse(document.getElementById(place.dataset.from).textContent);
  Plotly.newPlot(place, given.data, layout(given.layout),
    { responsive: true, displayModeBar: false });
  return { place, given };
});
dark.addEventListener("change", () =>
  charts.forEach(({ place, given }) => Plotly.relayout(place, layout(given.layout))));
document.querySelectorAll(".legend button").forEach(button => button.addEventListener("click", () => {
  const on = button.getAttribute("aria-pressed") === "false";
  button.setAttribute("aria-pressed", String(on));
  charts.forEach(({ place, given }) => {
    const which = given.data.flatMap((trace, i) => trace.legendgroup === button.dataset.group ? [i] : []);
    if (which.length) Plotly.restyle(place, { visible: on }, which);
  });
}));
"""
