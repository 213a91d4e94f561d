#include "penstock/report/timeline_page.h"

namespace penstock::report {

// All begins here: a page of one step, or of two and what differs between them.
std::string_view timeline_steps_script() {
  return R"js(
const all = JSON.parse(document.getElementById('data').textContent);
const steps = all.steps || [all];
if (all.differences) {
  const table = document.getElementById('differences');
  const addRow = (cells, tag) => {
    const row = table.appendChild(document.createElement('tr'));
    cells.forEach((text, k) => {
      const cell = row.appendChild(document.createElement(tag));
      cell.textContent = text;
      if (k === 0) cell.className = 'name';
    });
  };
  addRow(all.differences.headings, 'th');
  for (const cells of all.differences.rows) addRow(cells, 'td');
  document.getElementById('comparison').hidden = false;
}
for (const data of steps) {
  const copy = document.getElementById('step').content.cloneNode(true);
  const root = copy.firstElementChild;
  document.getElementById('steps').append(copy);
  stepPage(data, root, steps.length === 1);
}
)js";
}

}  // namespace penstock::report
