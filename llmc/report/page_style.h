// The page's style, and its script, which shows the values below the pointer. All curves are visible without the
// script.
#pragma once

inline constexpr const char* page_style = R"css(
:root{color-scheme:light dark;--paper:#fff;--ink:#222;--faint:#666;--grid:#e4e4e4;--card:#f6f6f4;
--c0:#1f5fb4;--c1:#2e8b57;--c2:#b8860b;--c3:#7d3c98;--c4:#c0392b;--c5:#117a8b;--val:#d1495b;--warn:#b45f06}
@media(prefers-color-scheme:dark){:root{--paper:#16181c;--ink:#e4e4e2;--faint:#9a9a98;--grid:#33363c;--card:#1f2228;
--c0:#7ab0f5;--c1:#6fd19b;--c2:#e6c15c;--c3:#cf9be8;--c4:#f08a7b;--c5:#6fd3e0;--val:#ff9aa5;--warn:#f0b060}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1320px;padding:12px 14px 40px;background:var(--paper);
color:var(--ink);font:15px/1.45 system-ui,sans-serif;overflow-wrap:break-word}
h1{font-size:1.35rem;margin:.2em 0}h2{font-size:1.1rem;margin:1.4em 0 .4em}h3{font-size:1rem;margin:1em 0 .3em}
p{margin:.3em 0}.faint{color:var(--faint)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:12px}
figure{margin:0;padding:8px;background:var(--card);border-radius:6px;min-width:0}
figure svg{display:block;width:100%;height:auto}figcaption{font-size:.85rem}figcaption span{margin-right:1em}
output{display:block;min-height:1.4em;color:var(--faint);font-variant-numeric:tabular-nums}
svg text{font:14px system-ui,sans-serif;fill:var(--faint)}.grid{stroke:var(--grid)}
polyline{fill:none;stroke-linejoin:round}.raw{stroke-width:1;stroke-opacity:.35}.mean{stroke-width:2}
.c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}.c4{color:var(--c4)}.c5{color:var(--c5)}
.val{color:var(--val)}line.start{stroke:var(--c1);stroke-width:2}line.warning{stroke:var(--warn);stroke-width:2}
line.rewind{stroke:var(--c4);stroke-width:2;stroke-dasharray:4 3}line.end{stroke:var(--faint);stroke-width:2}
.wide{overflow-x:auto}.wide svg{overflow:visible;display:block}.paper{background:#fff}.paper text{fill:#333;font-size:11px}
.cell{fill:currentColor;fill-opacity:.22;stroke:currentColor}
table{border-collapse:collapse;font-size:.88rem}td,th{text-align:left;vertical-align:top;padding:2px 10px 2px 0}
td.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.bar{display:inline-block;height:.7em;background:var(--c0);border-radius:2px;min-width:1px}td.room{width:40%}
pre{white-space:pre-wrap;background:var(--card);padding:8px;border-radius:6px;font-size:.85rem;margin:.3em 0}
summary{cursor:pointer}
)css";

inline constexpr const char* page_script = R"js(
const drawn=JSON.parse(document.getElementById('numbers').textContent);
for(const figure of document.querySelectorAll('figure[data-key]')){
 const svg=figure.querySelector('svg'),output=figure.querySelector('output');
 const tell=event=>{const box=svg.getBoundingClientRect(),at=(event.clientX-box.left)/box.width*drawn.width;
  const x=(at-drawn.left)/(drawn.right-drawn.left)*drawn.last;
  output.textContent=drawn.figures[figure.dataset.key].map(curve=>{let low=0,high=curve.points.length-1;
   while(low<high){const middle=low+high>>1;if(curve.points[middle][0]<x)low=middle+1;else high=middle}
   if(low>0&&x-curve.points[low-1][0]<curve.points[low][0]-x)low--;
   const [step,value]=curve.points[low];return `${curve.name} ${value} (step ${step})`}).join(' | ')};
 svg.addEventListener('pointermove',tell);svg.addEventListener('pointerdown',tell)}
)js";
