#include "penstock/report/timeline_page.h"

namespace penstock::report {

// Reads the data, and has all that draws the chart.
std::string_view timeline_chart_script() {
  return R"js(
'use strict';
// One step, in a copy of the page's template.
function stepPage(data, root, isAlone) {
const $ = name => root.querySelector('.' + name);
const SIDES = 'measured' in data.step ? ['predicted', 'measured'] : ['predicted'];
const END = Math.max(1, data.shown.time, ...SIDES.map(side => data.step[side]));

// Text of numbers. Times are nanoseconds; of bare numbers they are ticks, and have no unit.

function time(ns) {  // four digits
  if (data.is_bare) return '' + +(ns / data.ticks_per_second).toPrecision(6);
  if (ns === 0) return '0 ms';
  const [size, unit] = ns < 1e6 ? [1e3, 'us'] : ns < 1e9 ? [1e6, 'ms'] : [1e9, 's'];
  const before = Math.floor(Math.log10(Math.max(1, ns / size))) + 1;
  return (ns / size).toFixed(Math.max(0, 4 - before)) + ' ' + unit;
}
function bytes(n) {
  if (n < 1024) return n + ' B';
  const power = Math.min(3, Math.floor(Math.log2(n) / 10));
  return (n / 1024 ** power).toFixed(power === 3 ? 2 : 1) + ' ' + ['', 'KiB', 'MiB', 'GiB'][power];
}
function ratio(predicted, measured) {
  return predicted > 0 && measured > 0 ? (measured / predicted).toFixed(2) : '-';
}

// Round numbers from low to high, in units of `size`; at most `about` steps.
function ticks(low, high, size, about) {
  const least = (high - low) / size / Math.max(1, about);
  const power = 10 ** Math.floor(Math.log10(least));
  const step = power * [1, 2, 5, 10].find(factor => factor * power >= least * (1 - 1e-9));
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const found = [];
  for (let k = Math.ceil(low / size / step - 1e-9); k * step <= high / size * (1 + 1e-9); ++k)
    found.push({value: k * step * size, label: (k * step).toFixed(digits)});
  return found;
}

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

// What an instruction is, in words.

function opName(rank, i) { return data.ops[rank.instructions.op[i]]; }
function isTransfer(rank, i) { return ['send', 'receive'].includes(opName(rank, i)); }
function isCollective(rank, i) { return ['gather', 'reduce'].includes(opName(rank, i)); }
function describe(rank, i) {
  const list = rank.instructions, layer = data.layers[list.layer[i]], units = list.units[i];
  const unit = units.length === 1 ? data.units[units[0]] : null, group = data.groups[list.group[i]];
  return opName(rank, i) + (layer ? ' of ' + layer.name : '') + (unit ? ' of ' + unit.name : '') +
         (units.length > 1 ? ' of ' + units.length + ' units' : '') +
         (isCollective(rank, i) && !units.length ? ' of the squares' : '') +
         (list.micro_batch[i] >= 0 ? ', micro-batch ' + list.micro_batch[i] : '') +
         (isTransfer(rank, i) ? ', ' + rank.lanes[list.resource[i]].name : '') +
         (group ? ', over ' + group.name : '');
}
function keeps(rank, i) {
  const list = rank.instructions;
  return list.keep[i] < 0 ? 'nothing' : data.layers[list.layer[i]].modes[list.keep[i]];
}

// Where things are. The chart is a stack of lanes (bars over time), then a panel (memory over time)
// for each rank; all share the time axis, of which `view` is shown.

const view = {from: 0, to: END};
const hidden = new Set();  // ranks
let allLanes = [], allPanels = [], lanes = [], panels = [];  // of these, those of ranks that are shown
let width = 0, height = 0, left = 0, lanesBottom = 0, colours = {};
let hover = null;  // {r, time, side, i, bubble}: rank, moment, instruction or -1, bubble or null

function xOf(ns) { return left + (ns - view.from) / (view.to - view.from) * (width - left); }
function timeAt(x) { return view.from + (x - left) / (width - left) * (view.to - view.from); }

// What does nothing has no lane.
function makeLanes() {
  data.ranks.forEach((rank, r) => rank.lanes.forEach((lane, resource) => {
    if (lane.is_empty) return;
    for (const side of SIDES) {
      const {start, duration} = rank.sides[side];
      const items = [...start.keys()].filter(
          i => rank.instructions.resource[i] === resource && duration[i] > 0);
      const alone = data.ranks.length === 1 && rank.lanes.filter(one => !one.is_empty).length === 1;
      const bubbles = lane.has_bubbles ? rank.sides[side].bubbles : {share: '', start: [], end: []};
      allLanes.push({r, rank, side, resource, start, duration, items, bubbles, isLow: lane.is_low,
                     label: (alone || side === 'measured' ? side : lane.name) + bubbles.share});
    }
  }));
  const most = Math.max(...data.ranks.map(rank => Math.max(
      rank.shows_limit ? rank.limit : 0, ...SIDES.map(side => rank.sides[side].peak))));
  allPanels = data.is_bare ? [] : data.ranks.map((rank, r) => ({
    r, rank, most: 1.1 * Math.max(1, most, data.shown.bytes),
    resident: rank.residents.reduce((sum, one) => sum + one.bytes, 0)}));
  takeShown();
}
function takeShown() {
  lanes = allLanes.filter(lane => !hidden.has(lane.r));
  panels = allPanels.filter(panel => !hidden.has(panel.r));
  hover = null;
}

function layout() {
  width = $('chart').clientWidth;
  left = width < 760 ? 128 : 160;
  const count = lanes.reduce((sum, lane) => sum + (lane.isLow ? .25 : 1), 0), many = count > 16;
  const high = many ? 13 : count > 4 ? 20 : 28, low = many ? 9 : 12;
  let y = 24;
  for (const lane of lanes) {
    if (lane.side === 'predicted') y += lane.isLow ? 2 : many ? 4 : 8;
    Object.assign(lane, {y, h: lane.isLow ? low : high});
    y += lane.h + 1;
  }
  lanesBottom = y + 4;
  y += 4;
  for (const panel of panels) {
    const n = panels.length;
    Object.assign(panel, {y: y + 26, h: n === 1 ? 230 : n <= 2 ? 150 : n <= 8 ? 90 : 52});
    y = panel.y + panel.h + 6;
  }
  height = y + 20;
  const style = getComputedStyle(document.documentElement);
  for (const name of ['ink', 'faint', 'grid', 'lane', 'predicted', 'area', 'measured',
                      'hatch'])
    colours[name] = style.getPropertyValue('--' + name).trim();
}

function font(pixels) { return pixels + 'px system-ui, "Segoe UI", Helvetica, Arial, sans-serif'; }

// A canvas of the chart's size, cleared, in CSS pixels. Browsers refuse canvases that are too high.
function prepare(canvas) {
  const scale = Math.min(window.devicePixelRatio || 1, 16000 / height);
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = height + 'px';
  const g = canvas.getContext('2d');
  g.setTransform(scale, 0, 0, scale, 0, 0);
  g.font = font(12);
  g.textBaseline = 'middle';
  return g;
}

function line(g, x1, y1, x2, y2, colour) {
  g.strokeStyle = colour;
  g.beginPath();
  g.moveTo(x1, y1);
  g.lineTo(x2, y2);
  g.stroke();
}
function write(g, text, x, y, colour, align) {
  g.fillStyle = colour;
  g.textAlign = align || 'left';
  g.fillText(text, x, y);
}

// The last index with sorted[index] <= value, of `count` numbers; -1 if there is none.
function lastAt(count, numberAt, value) {
  let low = -1, high = count;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (numberAt(middle) <= value) low = middle; else high = middle;
  }
  return low;
}

// The picture.

function drawTimeAxis(g) {
  const [size, unit] = data.is_bare ? [data.ticks_per_second, 'time'] : END < 2e6 ? [1e3, 'us'] : END < 1e10 ? [1e6, 'ms'] : [1e9, 's'];
  for (const tick of ticks(view.from, view.to, size, (width - left) / 90)) {
    const x = Math.round(xOf(tick.value)) + .5;
    line(g, x, 20, x, lanesBottom, colours.grid);
    for (const panel of panels) line(g, x, panel.y, x, panel.y + panel.h, colours.grid);
    const align = x > width - 20 ? 'right' : 'center';
    write(g, tick.label, x, 10, colours.faint, align);
    write(g, tick.label, x, height - 10, colours.faint, align);
  }
  write(g, unit, left - 10, 10, colours.faint, 'right');
  write(g, unit, left - 10, height - 10, colours.faint, 'right');
}

// Layer (or unit) and micro-batch as in the names of values, where ranks work on several at once.
function barLabel(rank, i) {
  const units = rank.instructions.units[i];
  if (opName(rank, i) === 'step') return 'step';
  const layer = units.length === 1 ? units[0] : rank.instructions.layer[i];
  if (layer < 0) return opName(rank, i);
  const isPipeline = data.ranks.length > 1 && data.micro_batches > 1;
  const microBatch = rank.instructions.micro_batch[i];
  return isPipeline && microBatch >= 0 ? layer + '.' + microBatch : '' + layer;
}

function drawBar(g, lane, i, x1, x2) {
  const kind = data.kinds[lane.rank.instructions.kind[i]];
  g.fillStyle = kind.fill;
  g.fillRect(x1, lane.y, x2 - x1 > 3 ? x2 - x1 - 1 : x2 - x1, lane.h);
  const from = Math.max(x1, left), to = Math.min(x2, width);
  if (to - from < 10) return;
  const label = barLabel(lane.rank, i);
  g.font = font(Math.min(12, lane.h - 2));
  if (lane.h >= 12 && g.measureText(label).width <= to - from - 4)
    write(g, label, (from + to - 1) / 2, lane.y + lane.h / 2 + 1, kind.text, 'center');
}

// Hatched, where they can be seen: a measured step has thousands between instructions.
let hatch = null;
function drawBubbles(g, lane) {
  const {start, end} = lane.bubbles;
  for (let k = 0; k < start.length; ++k) {
    const x1 = Math.max(left, xOf(start[k])), x2 = Math.min(width, xOf(end[k]));
    if (x2 - x1 < 1.5) continue;
    g.fillStyle = hatch = hatch || hatchPattern(g);
    g.fillRect(x1, lane.y, x2 - x1, lane.h);
  }
}
function hatchPattern(g) {
  const tile = document.createElement('canvas');
  tile.width = tile.height = 8;
  const t = tile.getContext('2d');
  t.lineWidth = 1.5;
  for (const by of [-8, 0, 8]) line(t, by, 8, by + 8, 0, colours.hatch);
  return g.createPattern(tile, 'repeat');
}

// Bars narrower than half a pixel are drawn together, in the colour that takes most of their time.
function drawLane(g, lane) {
  const {start, duration, items} = lane, kinds = lane.rank.instructions.kind;
  let group = null;
  const finish = () => {
    if (!group) return;
    const main = group.ns.indexOf(Math.max(...group.ns));
    g.fillStyle = data.kinds[main].fill;
    g.fillRect(group.x1, lane.y, Math.max(.5, group.x2 - group.x1), lane.h);
    group = null;
  };
  g.fillStyle = colours.lane;
  g.fillRect(left, lane.y, width - left, lane.h);
  drawBubbles(g, lane);
  const first = Math.max(0, lastAt(items.length, k => start[items[k]], view.from));
  for (let k = first; k < items.length && start[items[k]] <= view.to; ++k) {
    const i = items[k], x1 = xOf(start[i]), x2 = xOf(start[i] + duration[i]);
    if (x2 - x1 >= .5) {
      finish();
      drawBar(g, lane, i, x1, x2);
      continue;
    }
    if (group && (x2 - group.x1 > 1 || x1 - group.x2 > .5)) finish();
    group = group || {x1, x2, ns: data.kinds.map(() => 0)};
    group.x2 = x2;
    group.ns[kinds[i]] += duration[i];
  }
  finish();
}

function yOf(panel, n) { return panel.y + panel.h * (1 - n / panel.most); }

// A step function. Of points less than half a pixel apart the highest and the last are drawn: no
// peak is lost, and what lasts for no time between two instructions is not seen.
function traceCurve(g, panel, side) {
  const {memory_at: at, memory_bytes: held} = panel.rank.sides[side];
  const end = Math.min(width, xOf(data.step[side]));
  let k = Math.max(0, lastAt(at.length, j => at[j], view.from));
  g.beginPath();
  for (let x = Math.max(left - 2, at.length ? xOf(at[k]) : 0); k < at.length && x <= end;) {
    let high = held[k], last = held[k];
    for (++k; k < at.length && xOf(at[k]) < x + .5; ++k) {
      last = held[k];
      high = Math.max(high, last);
    }
    g.lineTo(x, yOf(panel, high));
    g.lineTo(x, yOf(panel, last));
    x = k < at.length ? Math.min(end, xOf(at[k])) : end;
    g.lineTo(x, yOf(panel, last));
    if (x === end) break;
  }
  return end;
}

// What is held all the time is darker.
function drawResidents(g, panel) {
  const y = yOf(panel, panel.resident), h = panel.y + panel.h - y;
  g.fillStyle = colours.area;
  g.fillRect(left, y, Math.min(width, xOf(data.step.predicted)) - left, h);
  if (h >= 18) {
    const names = panel.rank.residents.map(one => one.name).join(', ');
    write(g, names + ' ' + bytes(panel.resident), left + 8, y + h - 10, colours.faint);
  }
}

function drawPanel(g, panel) {
  const {rank, r} = panel, bottom = panel.y + panel.h;
  const [size, unit] = panel.most < 2 ** 21 ? [1024, 'KiB'] : panel.most < 2 ** 31
      ? [1024 ** 2, 'MiB'] : [1024 ** 3, 'GiB'];
  for (const tick of ticks(0, panel.most, size, Math.max(3, panel.h / 42))) {
    const y = Math.round(yOf(panel, tick.value)) + .5;
    line(g, left, y, width, y, tick.value === 0 ? colours.faint : colours.grid);
    write(g, tick.value === 0 ? '0' : tick.label + ' ' + unit, left - 8, y, colours.faint, 'right');
  }
  write(g, data.ranks.length > 1 ? 'rank ' + r + ' memory' : 'memory', left - 8, panel.y - 12,
        colours.ink, 'right');
  const peak = rank.sides.predicted.peak_instruction;
  let text = 'peak ' + SIDES.map(side => bytes(rank.sides[side].peak) + ' ' + side).join(', ');
  if (peak >= 0 && width > 760) text += ', in ' + describe(rank, peak);
  const namesLimit = rank.shows_limit && panel.h >= 150;  // there is room at its line
  if (rank.limit > 0 && !namesLimit) text += '; limit ' + bytes(rank.limit);
  write(g, text, left, panel.y - 12, colours.faint);

  g.save();
  g.beginPath();
  g.rect(left, panel.y, width - left, panel.h + 1);
  g.clip();
  g.lineJoin = 'round';
  for (const side of SIDES) {
    const end = traceCurve(g, panel, side);
    g.strokeStyle = colours[side];
    g.lineWidth = side === 'measured' ? 1.5 : 1.2;
    g.stroke();
    if (side === 'predicted') {
      g.lineTo(end, bottom);
      g.lineTo(left - 2, bottom);
      g.fillStyle = colours.area;
      g.fill();
    }
  }
  g.restore();
  drawResidents(g, panel);
  if (rank.shows_limit) {
    const y = yOf(panel, rank.limit);
    g.setLineDash([6, 4]);
    line(g, left, y, width, y, colours.ink);
    g.setLineDash([]);
    if (namesLimit) write(g, 'limit ' + bytes(rank.limit), width - 4, y - 8, colours.ink, 'right');
  }
}

function draw() {
  layout();
  const g = prepare($('base'));
  drawTimeAxis(g);
  for (const lane of lanes) {
    g.font = font(Math.min(12, lane.h));
    write(g, lane.label, left - 8, lane.y + lane.h / 2 + 1,
          lane.side === 'measured' || lane.isLow ? colours.faint : colours.ink, 'right');
  }
  g.save();
  g.beginPath();
  g.rect(left, 0, width - left, height);
  g.clip();
  for (const lane of lanes) drawLane(g, lane);
  g.restore();
  g.font = font(12);
  for (const panel of panels) drawPanel(g, panel);
  drawMarks();
}

// Over the picture: the moment pointed at, the instruction in both lanes, what is held.
function drawMarks() {
  const g = prepare($('marks'));
  if (!hover || hover.time < view.from || hover.time > view.to) return;
  const x = xOf(hover.time);
  line(g, x, 20, x, height - 20, colours.faint);
  for (const lane of lanes) {
    if (!hasBar(lane, hover.r, hover.i)) continue;
    const x1 = Math.max(left, xOf(lane.start[hover.i]));
    const x2 = Math.min(width, xOf(lane.start[hover.i] + lane.duration[hover.i]));
    if (x2 < x1) continue;
    g.lineWidth = 2;
    g.strokeStyle = colours.ink;
    g.strokeRect(x1 - .5, lane.y - 1, Math.max(2, x2 - x1), lane.h + 2);
  }
  for (const panel of panels) for (const side of SIDES) {
    const held = heldAt(panel.rank, side, hover.time);
    if (held === null) continue;
    g.beginPath();
    g.arc(x, yOf(panel, held), 3.5, 0, 7);
    g.fillStyle = colours[side];
    g.fill();
  }
}

// What a rank holds at a moment; null before and after the step.
function heldAt(rank, side, ns) {
  const {memory_at: at, memory_bytes: held} = rank.sides[side];
  const k = lastAt(at.length, j => at[j], ns);
  return k < 0 || ns > data.step[side] ? null : held[k];
}

function hasBar(lane, r, i) {
  const {resource} = lane.rank.instructions;
  return lane.r === r && lane.duration[i] > 0 && resource[i] === lane.resource;
}
)js";
}

}  // namespace penstock::report
