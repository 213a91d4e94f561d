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
  --measured: #d55e00; --focus: #0072b2; --off: #b34700;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #101418; --card: #181d23; --ink: #e4e8ec; --faint: #98a2ad; --line: #2d353e;
    --grid: #252c34; --lane: #20262d; --predicted: #a3adb8; --area: rgba(163, 173, 184, .18);
    --measured: #ff8533; --focus: #56b4e9; --off: #ff9a57;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
       font: 14px/1.45 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
main { max-width: 1480px; margin: 0 auto; padding: 20px 24px 40px; }
h1 { font-size: 20px; margin: 0 0 14px; overflow-wrap: anywhere; }
h2 { font-size: 15px; margin: 26px 0 10px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
#cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 12px;
         margin-bottom: 14px; }
#cards .card { padding: 10px 14px; }
#cards b { display: block; font-size: 22px; font-weight: 600; line-height: 1.3; }
#cards span, .hint { color: var(--faint); font-size: 12.5px; }
.picture { padding: 12px 14px 10px; }
.tools { display: flex; flex-wrap: wrap; gap: 8px 16px; align-items: center; margin-bottom: 8px; }
#legend { display: flex; flex-wrap: wrap; gap: 4px 14px; flex: 1; font-size: 12.5px; }
#legend i { display: inline-block; width: 12px; height: 12px; border-radius: 2px;
            margin-right: 6px; vertical-align: -1px; }
#legend i.curve { height: 3px; width: 18px; vertical-align: 3px; }
#legend i.limit { height: 0; width: 18px; border-top: 2px dashed var(--ink); vertical-align: 3px;
                  border-radius: 0; }
button { font: inherit; color: inherit; background: var(--lane); border: 1px solid var(--line);
         border-radius: 6px; min-width: 32px; height: 28px; padding: 0 9px; cursor: pointer; }
button:hover { border-color: var(--faint); }
#chart { position: relative; cursor: crosshair; touch-action: pan-y; outline-offset: 3px;
         user-select: none; }
#chart:focus-visible, button:focus-visible { outline: 2px solid var(--focus); }
#chart.dragged { cursor: grabbing; }
#chart canvas { display: block; width: 100%; }
#marks { position: absolute; inset: 0; pointer-events: none; }
.hint { margin: 6px 0 0; }
#tip { position: fixed; z-index: 1; max-width: min(430px, calc(100vw - 16px)); padding: 9px 12px;
       background: var(--card); border: 1px solid var(--line); border-radius: 8px;
       box-shadow: 0 6px 24px rgba(0, 0, 0, .22); font-size: 12.5px; pointer-events: none; }
#tip[hidden] { display: none; }
#tip h3 { margin: 0 0 2px; font-size: 13px; overflow-wrap: anywhere; }
#tip p { margin: 0 0 5px; color: var(--faint); }
#tip table { border-collapse: collapse; }
#tip td, #tip th { padding: 1px 0 1px 16px; text-align: right; font-weight: 400;
                   font-variant-numeric: tabular-nums; white-space: nowrap; }
#tip th { color: var(--faint); }
#tip tr > :first-child { padding-left: 0; text-align: left; color: var(--faint); }
#tip dl { display: grid; grid-template-columns: auto 1fr; gap: 1px 12px; margin: 5px 0 0; }
#tip dt { color: var(--faint); }
#tip dd { margin: 0; overflow-wrap: anywhere; }
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
<h1 id="title"></h1>
<div id="cards"></div>
<div class="card picture">
  <div class="tools">
    <div id="legend"></div>
    <div>
      <button id="out" aria-label="Zoom out">&minus;</button>
      <button id="in" aria-label="Zoom in">+</button>
      <button id="reset">Whole step</button>
    </div>
  </div>
  <div id="chart" tabindex="0" role="img" aria-label="Timeline and memory of the step">
    <canvas id="base"></canvas><canvas id="marks"></canvas>
  </div>
  <p class="hint">Wheel zooms, drag moves, double click shows the whole step.
    Keys: + &minus; &larr; &rarr; 0; [ and ] go from instruction to instruction.</p>
</div>
<h2>Per layer</h2>
<div class="card scroll"><table class="numbers" id="layers"></table></div>
<h2>In total</h2>
<div class="card scroll"><table class="numbers" id="totals"></table></div>
<h2>Memory per rank</h2>
<div class="card scroll"><table class="numbers" id="memory"></table></div>
</main>
<div id="tip" hidden></div>
<script type="application/json" id="data">@DATA@</script>
<script>@SCRIPT@</script>
</body>
</html>
)page";
}

}  // namespace penstock::report
