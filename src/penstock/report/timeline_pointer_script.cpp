#include "penstock/report/timeline_page.h"

namespace penstock::report {

// Follows pointer, keys and address: what is pointed at, zoom and pan.
std::string_view timeline_pointer_script() {
  return R"js(
function instructionAt(lane, ns) {
  const k = lastAt(lane.items.length, j => lane.start[lane.items[j]], ns);
  const i = k < 0 ? -1 : lane.items[k];
  return k >= 0 && ns <= lane.start[i] + lane.duration[i] ? i : -1;
}

// The numbers of what is pointed at.

function row(table, cells, tag) {
  const made = table.appendChild(element('tr'));
  for (const cell of cells) made.appendChild(element(tag || 'td', cell));
}
function numbersTable(rows) {
  const table = element('table'), both = SIDES.length > 1;
  row(table, ['', ...SIDES, ...(both ? ['ratio'] : [])], 'th');
  for (const [name, text, of, compare] of rows) {
    const values = SIDES.map(of);
    const cells = values.map(value => value === null ? '-' : text(value));
    row(table, [name, ...cells, ...(both && compare ? [ratio(values[0], values[1])] : [])]);
  }
  return table;
}
function valueText(rank, ids) {
  const shown = ids.slice(0, 12).map(
      id => rank.values.names[id] +
            (data.is_bare ? '' : ' (' + bytes(rank.values.bytes[id]) + ')'));
  return shown.join(', ') + (ids.length > 12 ? ' and ' + (ids.length - 12) + ' more' : '');
}
function instructionTip(tip, rank, r, i) {
  const list = rank.instructions, kind = data.kinds[list.kind[i]].name;
  const where = ['#' + i, rank.resources[list.resource[i]]];
  if (data.ranks.length > 1) where.splice(1, 0, 'rank ' + r);
  if (list.layer[i] >= 0) where.push('layer ' + list.layer[i]);
  const units = list.units[i];
  if (units.length) where.push((units.length > 1 ? 'units ' : 'unit ') + units.join(', '));
  if (opName(rank, i) === 'forward') where.push('keeps ' + keeps(rank, i));
  if (kind === 'recomputed forward') where.push('recomputed');
  tip.append(element('h3', describe(rank, i)), element('p', where.join(' \u00b7 ')));
  const of = column => side => rank.sides[side][column][i];
  const times = [['start', time, of('start'), false], ['duration', time, of('duration'), true]];
  tip.append(numbersTable(data.is_bare ? times : [...times,
    ['held before', bytes, of('before'), true], ['held during', bytes, of('during'), true],
    ['held after', bytes, of('after'), true]]));
  const values = element('dl');
  for (const verb of ['reads', 'makes', 'sets', 'updates', 'frees']) {
    if (!list[verb][i].length) continue;
    values.append(element('dt', verb), element('dd', valueText(rank, list[verb][i])));
  }
  tip.append(values);
}
function momentTip(tip, rank, r, ns) {
  tip.append(element('h3', 'at ' + time(ns)));
  tip.append(numbersTable([['held', bytes, side => heldAt(rank, side, ns), true]]));
  const running = element('dl');
  for (const lane of lanes) {
    const i = lane.r === r ? instructionAt(lane, ns) : -1;
    if (i >= 0) running.append(element('dt', lane.label), element('dd', describe(rank, i)));
  }
  tip.append(running);
}
function bubbleTip(tip, r, [start, end]) {
  tip.append(element('h3', 'idle for ' + time(end - start)),
             element('p', 'rank ' + r + ' \u00b7 from ' + time(start) + ' to ' + time(end)));
}
function showTip(clientX, clientY) {  // beside the pointer, and below the bars it is about
  const tip = $('tip');
  tip.hidden = !hover;
  if (!hover) return;
  tip.replaceChildren();
  const rank = data.ranks[hover.r];
  if (hover.bubble) bubbleTip(tip, hover.r, hover.bubble);
  else if (hover.i >= 0) instructionTip(tip, rank, hover.r, hover.i);
  else momentTip(tip, rank, hover.r, hover.time);
  const box = tip.getBoundingClientRect();
  const beside = clientX + 16 + box.width > innerWidth - 8 ? clientX - 16 - box.width
                                                           : clientX + 16;
  tip.style.left = Math.max(8, beside) + 'px';
  const bars = lanes.filter(lane => hasBar(lane, hover.r, hover.i)).map(lane => lane.y + lane.h);
  const below = bars.length ? $('chart').getBoundingClientRect().top + Math.max(...bars) + 8
                            : clientY + 16;
  tip.style.top = Math.max(8, Math.min(below, innerHeight - box.height - 8)) + 'px';
}

function pointAt(event) {
  const box = $('chart').getBoundingClientRect();
  const x = event.clientX - box.left, y = event.clientY - box.top, ns = timeAt(x);
  const lane = lanes.find(one => y >= one.y && y < one.y + one.h + 1);
  const panel = panels.find(one => y >= one.y && y <= one.y + one.h);
  hover = null;
  if (x >= left && lane) {
    const i = instructionAt(lane, ns);
    const k = lastAt(lane.bubbles.start.length, j => lane.bubbles.start[j], ns);
    if (i >= 0) hover = {r: lane.r, i, side: lane.side, time: ns};
    else if (k >= 0 && ns <= lane.bubbles.end[k])
      hover = {r: lane.r, i: -1, time: ns, bubble: [lane.bubbles.start[k], lane.bubbles.end[k]]};
  } else if (x >= left && panel) {
    hover = {r: panel.r, i: -1, time: ns};
  }
  drawMarks();
  showTip(event.clientX, event.clientY);
}

// As if the pointer were in the middle of an instruction's bar.
function pointAtInstruction(r, i, side) {
  const lane = lanes.find(one => one.side === side && hasBar(one, r, i));
  if (!lane) return;
  const middle = lane.start[i] + lane.duration[i] / 2, span = view.to - view.from;
  if (middle < view.from || middle > view.to) show(middle - span / 2, middle + span / 2);
  hover = {r, i, side, time: middle};
  drawMarks();
  showTip($('chart').getBoundingClientRect().left + xOf(middle), 0);
}
function stepInstruction(by) {
  const at = hover && hover.i >= 0 ? hover : null;
  const lane = at ? lanes.find(one => one.side === at.side && hasBar(one, at.r, at.i)) : lanes[0];
  const k = at ? lane.items.indexOf(at.i) + by : 0;
  if (lane && k >= 0 && k < lane.items.length) pointAtInstruction(lane.r, lane.items[k], lane.side);
}

// Zoom and pan.

let frame = 0;
function show(from, to) {
  const span = Math.min(END, Math.max(to - from, Math.min(END, 100)));
  view.from = Math.max(0, Math.min(from, END - span));
  view.to = view.from + span;
  hover = null;  // what was pointed at has moved away
  showTip(0, 0);
  if (!frame) frame = requestAnimationFrame(() => { frame = 0; draw(); });
}
function zoom(factor, centre) {
  show(centre - (centre - view.from) * factor, centre + (view.to - centre) * factor);
}
function zoomMiddle(factor) { zoom(factor, (view.from + view.to) / 2); }
function pan(part) {
  const by = part * (view.to - view.from);
  if (by < 0 ? view.from > 0 : view.to < END) show(view.from + by, view.to + by);
}
function showAll() { show(0, END); }

function listen() {
  const chart = $('chart');
  let drag = null;
  chart.addEventListener('wheel', event => {
    const isWhole = view.from === 0 && view.to === END;
    if (isWhole && event.deltaY > 0) return;  // nothing to zoom out of: the page scrolls
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
      pan((event.deltaX || event.deltaY) / width);
    else
      zoom(1.0015 ** event.deltaY, timeAt(Math.max(left, event.offsetX)));
  }, {passive: false});
  chart.addEventListener('pointerdown', event => {
    drag = {x: event.clientX, from: view.from, to: view.to};
    chart.setPointerCapture(event.pointerId);
  });
  chart.addEventListener('pointermove', event => {
    if (!drag) return pointAt(event);
    const by = (drag.x - event.clientX) / (width - left) * (drag.to - drag.from);
    if (Math.abs(drag.x - event.clientX) < 3) return;
    chart.classList.add('dragged');
    show(drag.from + by, drag.to + by);
  });
  const release = () => { drag = null; chart.classList.remove('dragged'); };
  chart.addEventListener('pointerup', release);
  chart.addEventListener('pointercancel', release);
  chart.addEventListener('pointerleave', () => { hover = null; drawMarks(); showTip(0, 0); });
  chart.addEventListener('dblclick', showAll);
  $('in').addEventListener('click', () => zoomMiddle(.5));
  $('out').addEventListener('click', () => zoomMiddle(2));
  $('reset').addEventListener('click', showAll);
  const keys = {'+': () => zoomMiddle(.5), '=': () => zoomMiddle(.5), '-': () => zoomMiddle(2),
                '0': showAll, ArrowLeft: () => pan(-.2), ArrowRight: () => pan(.2),
                '[': () => stepInstruction(-1), ']': () => stepInstruction(1)};
  document.addEventListener('keydown', event => {
    const isOurs = !event.ctrlKey && !event.metaKey && !event.altKey &&
                   !event.target.closest?.('.scroll') &&  // there, arrows scroll a table
                   (isAlone || !'[]'.includes(event.key) || root.contains(event.target));
    if (!isOurs || !keys[event.key]) return;
    keys[event.key]();
    event.preventDefault();
  });
  window.addEventListener('resize', draw);
  window.addEventListener('hashchange', followAddress);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
}

// page.html#zoom=0.2,0.4&ranks=0,2-3&hover=12&rank=0&side=measured: parts of the step, the ranks that
// are shown, and an instruction.
function followAddress() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const [from, to] = (wanted.get('zoom') || '0,1').split(',').map(Number);
  if (wanted.has('ranks')) showOnly(wanted.get('ranks'));
  if (to > from) show(from * END, to * END);
  draw();
  if (!wanted.has('hover')) return;
  pointAtInstruction(+wanted.get('rank'), +wanted.get('hover'), wanted.get('side') || 'predicted');
}
)js";
}

}  // namespace penstock::report
