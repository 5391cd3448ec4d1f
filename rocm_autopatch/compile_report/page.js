"use strict";
// Tables sort by a click on a column's head, numbers by their value; a filter hides rows.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = table.tHead.rows[0].cells;
  for (const head of heads) {
    head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "descending";
      const numeric = head.dataset.kind === "number";
      // Numbers come largest first, texts from A on; a second click turns it round.
      const ascending = head.hasAttribute("aria-sort") ? down : !numeric;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      const value = row => {
        const cell = row.cells[head.cellIndex];
        return numeric ? Number(cell.dataset.value ?? "-1") : cell.textContent;
      };
      const compare = numeric ? (a, b) => a - b : (a, b) => a.localeCompare(b);
      const body = table.tBodies[0];
      const rows = Array.from(body.rows, row => [value(row), row]);
      rows.sort((a, b) => (ascending ? 1 : -1) * compare(a[0], b[0]));
      body.append(...rows.map(pair => pair[1]));
    });
  }
}
for (const filter of document.querySelectorAll("input.filter")) {
  filter.hidden = false;
  filter.addEventListener("input", () => {
    const wanted = filter.value.toLowerCase();
    for (const row of document.getElementById(filter.dataset.table).tBodies[0].rows) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
    }
  });
}
