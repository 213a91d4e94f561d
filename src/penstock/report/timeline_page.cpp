#include "penstock/report/timeline_page.h"

namespace penstock::report {

std::string_view timeline_page() {
  return R"page(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>@TITLE@</title>
<style>
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1d2329; --faint: #5b6470; --line: #dfe3e8;
  --grid: #eceef1; --lane: #f1f3f5; --predicted: #5b6470; --area: rgba(91, 100, 112, .17);
  --measured: #d55e00; --focus: #0072b2; --off: #b34700; --hatch: #b9c0c9;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #101418; --card: #181d23; --ink: #e4e8ec; --faint: #98a2ad; --line: #2d353e;
    --grid: #252c34; --lane: #20262d; --predicted: #a3adb8; --area: rgba(163, 173, 184, .18);
    --measured: #ff8533; --focus: #56b4e9; --off: #ff9a57; --hatch: #4a5560;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
       font: 14px/1.45 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
main { max-width: 1480px; margin: 0 auto; padding: 20px 24px 40px; }
h1 { font-size: 20px; margin: 0 0 14px; overflow-wrap: anywhere; }
h2 { font-size: 15px; margin: 26px 0 10px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 12px;
         margin-bottom: 14px; }
.cards .card { padding: 10px 14px; }
.cards b { display: block; font-size: 22px; font-weight: 600; line-height: 1.3; }
.cards span, .hint { color: var(--faint); font-size: 12.5px; }
.picture { padding: 12px 14px 10px; }
.tools { display: flex; flex-wrap: wrap; gap: 8px 16px; align-items: center; margin-bottom: 8px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 14px; flex: 1; font-size: 12.5px; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 2px;
            margin-right: 6px; vertical-align: -1px; }
.legend i.idle { background: repeating-linear-gradient(135deg, transparent 0 2px, var(--hatch) 2px 4px); }
.legend i.curve { height: 3px; width: 18px; vertical-align: 3px; }
.legend i.limit { height: 0; width: 18px; border-top: 2px dashed var(--ink); vertical-align: 3px;
                  border-radius: 0; }
button { font: inherit; color: inherit; background: var(--lane); border: 1px solid var(--line);
         border-radius: 6px; min-width: 32px; height: 28px; padding: 0 9px; cursor: pointer; }
button:hover { border-color: var(--faint); }
.chart { position: relative; cursor: crosshair; touch-action: pan-y; outline-offset: 3px;
         user-select: none; }
.chart:focus-visible, button:focus-visible { outline: 2px solid var(--focus); }
.chart.dragged { cursor: grabbing; }
.chart canvas { display: block; width: 100%; }
.marks { position: absolute; inset: 0; pointer-events: none; }
.hint { margin: 6px 0 0; }
.tip { position: fixed; z-index: 1; max-width: min(430px, calc(100vw - 16px)); padding: 9px 12px;
       background: var(--card); border: 1px solid var(--line); border-radius: 8px;
       box-shadow: 0 6px 24px rgba(0, 0, 0, .22); font-size: 12.5px; pointer-events: none; }
.tip h3 { margin: 0 0 2px; font-size: 13px; overflow-wrap: anywhere; }
.tip p { margin: 0 0 5px; color: var(--faint); }
.tip table { border-collapse: collapse; }
.tip td, .tip th { padding: 1px 0 1px 16px; text-align: right; font-weight: 400;
                   font-variant-numeric: tabular-nums; white-space: nowrap; }
.tip th { color: var(--faint); }
.tip tr > :first-child { padding-left: 0; text-align: left; color: var(--faint); }
.tip dl { display: grid; grid-template-columns: auto 1fr; gap: 1px 12px; margin: 5px 0 0; }
.tip dt { color: var(--faint); }
.tip dd { margin: 0; overflow-wrap: anywhere; }
.ranks { display: flex; flex-wrap: wrap; gap: 4px 10px; align-items: center; margin: 0 0 8px;
         padding: 4px 10px 6px; border: 1px solid var(--line); border-radius: 6px; font-size: 12.5px; }
.ranks legend { color: var(--faint); padding: 0 4px; }
.ranks span { display: flex; flex-wrap: wrap; gap: 2px 12px; max-height: 84px; overflow: auto; }
.peaks { display: grid; gap: 8px; }
.peaks summary { padding: 8px 14px; cursor: pointer; }
.names { display: grid; grid-template-columns: repeat(auto-fill, 44px minmax(280px, 1fr)); gap: 3px 12px;
         margin: 0; padding: 10px 14px; font-size: 12.5px; }
.names dd { margin: 0; color: var(--faint); }
[hidden] { display: none !important; }
#comparison { margin-bottom: 32px; }
.step + .step { margin-top: 44px; }
.tables { margin-top: 16px; }
.tables > summary { cursor: pointer; color: var(--faint); }
.scroll { overflow: auto; max-height: 75vh; }
.numbers { border-collapse: collapse; width: 100%; font-size: 13px; }
.numbers th { position: sticky; top: 0; background: var(--card); font-weight: 600; }
.numbers th, .numbers td { padding: 4px 12px; text-align: right; white-space: nowrap;
                           font-variant-numeric: tabular-nums; }
.numbers .name { text-align: left; }
.numbers td { border-top: 1px solid var(--grid); }
.numbers tr.total td { border-top: 1px solid var(--faint); font-weight: 600; }
.numbers .off { color: var(--off); font-weight: 600; }
</style>
</head>
<body>
<main>
<section id="comparison" hidden>
  <h1>Two programs</h1>
  <div class="card scroll"><table class="numbers" id="differences"></table></div>
</section>
<div id="steps"></div>
</main>
<template id="step">
<section class="step">
<h1 class="title"></h1>
<div class="cards"></div>
<div class="card picture">
  <div class="tools">
    <div class="legend"></div>
    <div>
      <button class="out" aria-label="Zoom out">&minus;</button>
      <button class="in" aria-label="Zoom in">+</button>
      <button class="reset">Whole step</button>
    </div>
  </div>
  <fieldset class="ranks" hidden>
    <legend>Ranks</legend>
    <button class="all">All</button> <button class="none">None</button> <span></span>
  </fieldset>
  <div class="chart" tabindex="0" role="img" aria-label="Timeline and memory of the step">
    <canvas class="base"></canvas><canvas class="marks"></canvas>
  </div>
  <p class="hint">Wheel zooms, drag moves, double click shows the whole step.
    Keys: + &minus; &larr; &rarr; 0; [ and ] go from instruction to instruction.</p>
</div>
<details class="tables">
<summary>Per layer, in total, memory, what is alive at the peak, names</summary>
<h2>Per layer</h2>
<div class="card scroll"><table class="numbers layers"></table></div>
<h2>In total</h2>
<div class="card scroll"><table class="numbers totals"></table></div>
<div class="of-memory">
<h2>Memory per rank</h2>
<div class="card scroll"><table class="numbers memory"></table></div>
</div>
<div class="of-peaks">
<h2>Alive at the predicted peak</h2>
<div class="peaks"></div>
</div>
<h2>Names</h2>
<dl class="card names"></dl>
</details>
<div class="tip" hidden></div>
</section>
</template>
<script type="application/json" id="data">@DATA@</script>
<script>@SCRIPT@</script>
</body>
</html>
)page";
}

}  // namespace penstock::report
