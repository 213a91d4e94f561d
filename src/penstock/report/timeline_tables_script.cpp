#include "penstock/report/timeline_page.h"

namespace penstock::report {

// What is around the chart; at its end, all begins.
std::string_view timeline_tables_script() {
  return R"js(
function addCard(name, value, more) {
  const card = element('div', undefined, 'card');
  card.append(element('span', name), element('b', value), element('span', more));
  $('cards').append(card);
}
function fillCards() {
  const last = SIDES[SIDES.length - 1], {predicted, measured} = data.step;
  addCard('Step, ' + last, time(data.step[last]), measured === undefined ? 'not measured' :
          'predicted ' + time(predicted) + ', ratio ' + ratio(predicted, measured));
  const top = data.ranks.reduce(
      (a, b) => b.sides[last].peak > a.sides[last].peak ? b : a, data.ranks[0]);
  if (top) {
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
  addCard('Recomputed forwards, ' + last, (100 * again / Math.max(1, all)).toFixed(1) + '%',
          'of the work: ' + count('again') + ' of ' + count('forwards') + ' forwards, ' +
          time(again));
}
function fillLegend() {
  const used = new Set();
  for (const lane of lanes) for (const i of lane.items) used.add(lane.rank.instructions.kind[i]);
  const entry = (name, className, colour) => {
    const mark = element('i', undefined, className), text = element('span');
    mark.style.background = colour;
    text.append(mark, name);
    $('legend').append(text);
  };
  data.kinds.forEach((kind, k) => { if (used.has(k)) entry(kind.name, '', kind.fill); });
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
    tableRow(memory, [r, residents, ...pair(peaks, bytes), ...limits], 2, 'td');
  });
}

$('title').textContent = data.title;
makeLanes();
fillCards();
fillLegend();
fillTables();
listen();
followAddress();
)js";
}

}  // namespace penstock::report
