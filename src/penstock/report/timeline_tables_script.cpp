#include "penstock/report/timeline_page.h"

namespace penstock::report {

// What is around the chart; at its end, a step begins.
std::string_view timeline_tables_script() {
  return R"js(
function addCard(name, value, more) {
  const card = element('div', undefined, 'card');
  card.append(element('span', name), element('b', value), element('span', more));
  $('cards').append(card);
}
function fillCards() {
  const last = SIDES[SIDES.length - 1], {predicted, measured} = data.step;
  addCard(data.step_noun[0].toUpperCase() + data.step_noun.slice(1) + ', ' + last, time(data.step[last]), measured === undefined ? 'not measured' :
          'predicted ' + time(predicted) + ', ratio ' + ratio(predicted, measured));
  const top = data.ranks.reduce(
      (a, b) => b.sides[last].peak > a.sides[last].peak ? b : a, data.ranks[0]);
  if (top && !data.is_bare) {
    const peak = top.sides[last].peak;
    const limit = top.limit > 0 ? bytes(top.limit) + ' limit, ' +
                  (100 * peak / top.limit).toFixed(1) + '% used' : 'no limit';
    addCard('Peak memory, ' + last, bytes(peak), measured === undefined ? limit :
            'predicted ' + bytes(top.sides.predicted.peak) + '; ' + limit);
  }
  if (data.ranks.length > 1) {
    const share = side => (100 * data.computing[side]).toFixed(1) + '%';
    addCard('Ranks compute, ' + last, share(last), 'of the time' +
            (measured === undefined ? '' : '; predicted ' + share('predicted')));
  }
  const count = key => data.layers.reduce((sum, layer) => sum + layer[key], 0);
  const again = data.sums.again[SIDES.length - 1], all = data.sums.all[SIDES.length - 1];
  if (!data.is_bare) addCard('Recomputed forwards, ' + last, (100 * again / Math.max(1, all)).toFixed(1) + '%',
          'of the work: ' + count('again') + ' of ' + count('forwards') + ' forwards, ' +
          time(again));
}
function fillLegend() {
  const used = new Set();
  for (const lane of allLanes) for (const i of lane.items) used.add(lane.rank.instructions.kind[i]);
  const entry = (name, className, colour) => {
    const mark = element('i', undefined, className), text = element('span');
    mark.style.background = colour;
    text.append(mark, name);
    $('legend').append(text);
  };
  data.kinds.forEach((kind, k) => { if (used.has(k)) entry(kind.name, '', kind.fill); });
  if (allLanes.some(lane => lane.bubbles.share)) entry('bubble (idle)', 'idle', '');
  if (data.is_bare) return;
  SIDES.forEach((side, k) => entry((k ? '' : 'memory ') + side, 'curve', 'var(--' + side + ')'));
  if (data.ranks.some(rank => rank.shows_limit)) entry('limit', 'limit', 'none');
}

// Cells after `names` are numbers; a ratio far from 1 stands out.
function tableRow(table, cells, names, tag, className) {
  const made = table.appendChild(element('tr', undefined, className));
  cells.forEach((cell, k) => {
    const isOff = typeof cell === 'object' && Math.abs(cell.ratio - 1) > .1;
    made.append(element(tag, typeof cell === 'object' ? cell.ratio : cell,
                        k < names ? 'name' : isOff ? 'off' : ''));
  });
  return made;
}
function headings(what) { return SIDES.length > 1 ? [what, 'measured', 'ratio'] : [what]; }
function pair(seconds, text) {
  if (SIDES.length < 2) return [(text || time)(seconds[0])];
  return [...seconds.map(text || time), {ratio: ratio(...seconds)}];
}
function fillTables() {
  const {sums} = data, layers = $('layers'), totals = $('totals'), memory = $('memory');
  tableRow(layers, ['layer', 'kept', 'forwards', 'recomputed', ...headings('forward predicted'),
                    ...headings('backward predicted')], 2, 'th');
  data.layers.forEach((layer, k) => tableRow(
      layers, [k + ' ' + layer.name, layer.kept, layer.forwards, layer.again,
               ...pair(layer.forward), ...pair(layer.backward)], 2, 'td'));
  tableRow(layers, ['all layers', '', '', '', ...pair(sums.forward), ...pair(sums.backward)], 2,
           'td', 'total');

  tableRow(totals, ['', ...headings('predicted')], 1, 'th');
  const works = [['forward', sums.forward], ['of it recomputed', sums.again],
                 ['backward', sums.backward], ...sums.others.map(one => [one.name, one.seconds]),
                 ['all work', sums.all],
                 ...sums.transfers.map(one => [one.name, one.seconds])];
  for (const [name, seconds] of works) tableRow(totals, [name, ...pair(seconds)], 1, 'td');
  tableRow(totals, [sums.step_name, ...pair(SIDES.map(side => data.step[side]))], 1, 'td',
           'total');

  tableRow(memory, ['rank', 'held all the time', ...headings('predicted peak'), 'limit', 'left'], 2,
           'th');
  data.ranks.forEach((rank, r) => {
    const peaks = SIDES.map(side => rank.sides[side].peak);
    const residents = rank.residents.map(one => one.name + ' ' + bytes(one.bytes)).join(', ');
    const free = rank.limit - Math.max(...peaks);
    const limits = rank.limit > 0
        ? [bytes(rank.limit), (free < 0 ? '-' : '') + bytes(Math.abs(free))] : ['none', '-'];
    tableRow(memory, [r, residents, ...pair(peaks, bytes), ...limits], 2, 'td').dataset.rank = r;
  });
  $('of-memory').hidden = data.is_bare;
}

// What is alive at each rank's peak, the largest first. Filled when it is opened.
function fillPeaks() {
  data.ranks.forEach((rank, r) => {
    const {bytes: peak, instruction, values} = rank.alive_at_peak;
    const details = $('peaks').appendChild(element('details', undefined, 'card'));
    details.dataset.rank = r;
    details.append(element('summary', (data.ranks.length > 1 ? 'rank ' + r + ': ' : '') + bytes(peak) +
        (instruction >= 0 ? ' in ' + describe(rank, instruction) : '')));
    const fill = () => {
      const table = element('table', undefined, 'numbers'), scroll = element('div', undefined, 'scroll');
      details.append(scroll);
      scroll.append(table);
      tableRow(table, ['value', 'what', 'of', 'micro-batch', 'bytes', 'share of the peak'], 3, 'th');
      for (const [name, what, of, microBatch, held] of values)
        tableRow(table, [name, what, of, microBatch < 0 ? '' : microBatch, bytes(held),
                         (100 * held / peak).toFixed(1) + '%'], 3, 'td');
    };
    details.addEventListener('toggle', fill, {once: true});
    details.open = data.ranks.length === 1;
  });
}
function fillNames() {
  for (const [name, meaning] of data.names)
    $('names').append(element('dt', name), element('dd', meaning));
}

// Which ranks are shown.

function fillRanks() {
  $('ranks').hidden = data.ranks.length < 2;
  const list = $('ranks').querySelector('span');
  data.ranks.forEach((rank, r) => {
    const label = element('label'), box = element('input');
    box.type = 'checkbox';
    box.checked = true;
    box.addEventListener('change', () => showRank(r, box.checked));
    label.append(box, ' ' + r);
    list.append(label);
  });
  $('all').addEventListener('click', () => data.ranks.forEach((rank, r) => showRank(r, true)));
  $('none').addEventListener('click', () => data.ranks.forEach((rank, r) => showRank(r, false)));
}
function showRank(r, isShown) {
  if (isShown) hidden.delete(r); else hidden.add(r);
  $('ranks').querySelectorAll('input')[r].checked = isShown;
  for (const one of root.querySelectorAll('[data-rank="' + r + '"]')) one.hidden = !isShown;
  takeShown();
  show(view.from, view.to);
}
function showOnly(text) {  // "0,2-3"
  const wanted = text.split(',').map(part => part.split('-').map(Number));
  data.ranks.forEach((rank, r) =>
      showRank(r, wanted.some(([first, last = first]) => r >= first && r <= last)));
}

$('title').textContent = data.heading;
$('tables').open = isAlone;  // of two steps, the charts are one below the other
$('tables').querySelector('summary').hidden = isAlone;
makeLanes();
fillCards();
fillLegend();
fillTables();
if (!data.is_bare) fillPeaks();
$('of-peaks').hidden = data.is_bare;
fillNames();
fillRanks();
listen();
followAddress();
}
)js";
}

}  // namespace penstock::report
