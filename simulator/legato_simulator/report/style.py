"""The report's style sheet: light or dark as the reader prefers, and readable at 360 px."""

STYLE = """
:root{color-scheme:light dark;--page:#fcfcfb;--ink:#0b0b0b;--soft:#52514e;--faint:#e1e0d9;--one:#2a78d6;--two:#d9591f;
--good:#2b6a2b;--miss:#b3261e}
@media (prefers-color-scheme:dark){:root{--page:#1a1a19;--ink:#fff;--soft:#c3c2b7;--faint:#383835;--one:#5598e7;
--two:#ee7b4d;--good:#7fc97f;--miss:#ff8a80}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1200px;margin:0 auto;padding:16px}
h1{font-size:1.6em;line-height:1.2}h2{margin:2em 0 .3em;font-size:1.2em}
p,dl{max-width:75ch;color:var(--soft)}dt{color:var(--ink);font-weight:600}dd{margin:0 0 .5em}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:5px 10px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--faint)}
th:first-child,.detail td:last-child,.detail th:last-child{text-align:left}
thead th{color:var(--soft);font-weight:600;vertical-align:bottom}
tbody th{position:sticky;left:0;background:var(--page);font-weight:600}
.good{color:var(--good)}.miss{color:var(--miss);font-weight:600}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:20px 32px;margin-top:20px}
figure{margin:0;min-width:0}
figcaption{font-size:13px}.unit{color:var(--soft)}
figcaption ul{display:flex;flex-wrap:wrap;gap:2px 14px;margin:2px 0 8px;padding:0;list-style:none;color:var(--soft);
min-height:1.5em}
figcaption i{display:inline-block;width:14px;height:3px;margin-right:6px;vertical-align:middle}
i.one{background:var(--one)}i.two{background:var(--two)}i.area{height:11px;opacity:.3}
.plot{display:grid;grid-template:130px 22px/46px 1fr;font-size:11px;color:var(--soft);margin-right:14px}
.y,.x{position:relative}
.y span{position:absolute;right:8px;transform:translateY(50%);line-height:1}
.x{grid-column:2}.x span{position:absolute;top:6px;transform:translateX(-50%);line-height:1;white-space:nowrap}
.x span:first-child{transform:none}
svg{width:100%;height:100%;display:block;overflow:visible}
svg *{vector-effect:non-scaling-stroke;fill:none}
.grid line{stroke:var(--faint);stroke-width:1}
path.one{stroke:var(--one);stroke-width:1.6}path.two{stroke:var(--two);stroke-width:1.6}
i.dot{width:9px;height:9px;border-radius:50%;background:var(--soft)}i.dot.faint{opacity:.4}i.dot.one{background:var(--one)}
i.dot.written{background:var(--two)}i.dot.chosen{background:var(--good)}
path.mark{stroke:var(--soft);stroke-dasharray:4 4}
path.dot{stroke-width:8;stroke-linecap:round;stroke:var(--soft)}path.dot.faint{stroke-opacity:.4}
path.dot.one{stroke:var(--one)}path.dot.written{stroke:var(--two)}path.dot.chosen{stroke:var(--good)}
path.area{fill:var(--one);fill-opacity:.25;stroke:none}
"""
